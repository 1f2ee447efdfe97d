//! GSO packets above 64 KiB (BIG TCP), and GSO packets whose tunnel the kernel can take off.

use std::os::fd::AsRawFd;

use accel::{Accel, DecapGso, Options, Wanted};
use nix::sys::socket::{MsgFlags, recv};
use test_support::{need, require};
use testbed::{Host, NIC, Offload};

use super::differential::frames;
use super::pair::{PORT, Pair, TENANT_B, since};

/// Size of GSO packets, bytes.
const SIZE: u32 = 200_000;
/// Length of the outer headers over IPv4, with Ethernet.
const OUTER: usize = 14 + 20 + 8 + 8;

fn set(host: &Host, device: &str) {
    host.netlink().set_gso_max_size(device, SIZE).unwrap();
    host.netlink().set_gso_ipv4_max_size(device, SIZE).unwrap();
}

/// No kernel here encapsulates such packets. An option of the fast path replaces the test of the
/// kernel, and both ends run the fast path.
#[test]
fn packets_above_64_kib_have_length_fields_of_zero() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    for (host, device) in [
        (&pair.tenant_a, "eth0"),
        (&pair.a, PORT),
        (&pair.a, NIC),
        (&pair.b, NIC),
        (&pair.b, PORT),
        (&pair.tenant_b, "eth0"),
    ] {
        set(host, device);
    }
    let start = |host: &Host| {
        let options = Options { gso_max_size: Some(SIZE), ..Options::default() };
        Accel::with(host.netns(), Wanted::All, options).unwrap()
    };
    let both = [start(&pair.a), start(&pair.b)];
    pair.settle(&both);
    let wire = pair.b.netns().run(frames).unwrap();
    let before = both.each_ref().map(Accel::status);
    pair.stream(TENANT_B.into(), 20_000_000);
    let field = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (mut big, mut longest) = (0, 0);
    let mut frame = [0; 200];
    while let Ok(length) = recv(wire.as_raw_fd(), &mut frame, MsgFlags::MSG_TRUNC) {
        // Frames of the underlay, to the VXLAN port.
        if length <= 65_600 || frame[23] != 17 || field(&frame, 36) != 4789 {
            continue;
        }
        assert_eq!(field(&frame, 16), 0, "outer IPv4 length of {length} bytes");
        assert_eq!(field(&frame, 38), 0, "outer UDP length of {length} bytes");
        assert_eq!(field(&frame, OUTER + 16), 0, "inner IPv4 length of {length} bytes");
        (big, longest) = (big + 1, longest.max(length));
    }
    // Both directions.
    let taken: u64 =
        (both.iter().zip(&before)).map(|(accel, before)| since(accel, before, "decap_hit")).sum();
    eprintln!("{big} packets above 64 KiB on the wire, longest {longest} bytes; {taken} taken");
    assert!(big > 0 && taken >= big, "{:#?}", both.each_ref().map(Accel::status));
}

/// The programs load on each kernel, whatever it can. Where it cannot, a packet whose tunnel they try
/// to take off takes the slow path unchanged.
#[test]
fn gso_packets_arrive_whether_or_not_the_kernel_takes_the_tunnel_off() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    for choice in [DecapGso::Probe, DecapGso::Without, DecapGso::With] {
        let options = Options { decap_gso: choice, ..Options::default() };
        let accel = Accel::with(pair.b.netns(), Wanted::All, options).unwrap();
        pair.settle_receiver(&accel);
        let (before, is_possible) = (accel.status(), accel.status().decap_gso);
        pair.stream(TENANT_B.into(), 3_000_000);
        let [hit, unfit] = ["decap_hit", "decap_unfit"].map(|word| since(&accel, &before, word));
        eprintln!("{choice:?}: decap_gso {is_possible}, {hit} taken, {unfit} unfit");
        match choice {
            DecapGso::Probe => assert_eq!(is_possible, can_unwrap()),
            DecapGso::Without => assert!(!is_possible),
            DecapGso::With => assert!(is_possible),
        }
        assert!(hit > 0, "{choice:?}: {:#?}", accel.status());
        // Only a kernel without the flag refuses it.
        assert_eq!(unfit > 0, choice == DecapGso::With && !can_unwrap(), "{choice:?}");
    }
}

/// Whether the kernel's BTF names the flag, as bpftool(8) shows it.
fn can_unwrap() -> bool {
    std::fs::read("/sys/kernel/btf/vmlinux")
        .unwrap()
        .windows(27)
        .any(|name| name == b"BPF_F_ADJ_ROOM_DECAP_L4_UDP")
}
