//! Tests modes that this machine's kernel may lack on a stock Debian kernel in a QEMU guest:
//! `vlan`, `ipvlan`, Open vSwitch's kernel datapath, and the network node on these. Functional
//! only.

use crate::qemu;
use crate::traffic;

use std::collections::BTreeMap;
use std::path::Path;

use lab::{Capabilities, Mode, Params, modes};
use netstate::{HopKind, Side};
use qemu::Guest;
use test_support::require;
use testbed::{Offload, Privileges};
use traffic::{BYTES, echo, segmented_datagrams_arrive, stream_both_ways};

/// The test that the guest runs, in this program: it performs the part inside.
const INSIDE: &str = "guest::every_mode_works_on_a_stock_kernel";

/// Variants of the network node that use no feature beyond those of another variant or of this
/// machine's kernel. Each is slow in software emulation.
fn is_as_another(mode: &str) -> bool {
    ["vrouter", "floating-ip", "snat"].iter().any(|start| mode.starts_with(start))
        && !["vrouter-vlan", "vrouter-ovs", "vrouter-ovs-vlan"].contains(&mode)
}

/// Drives every mode and prints a line for each: `mode`, name, `ok` or
/// `unsupported`, then the hops' bytes and the notes, or the reason; separated
/// by tabs.
fn report_on_every_mode() {
    let machine = Capabilities::new(Privileges::Root).unwrap();
    // In reverse order: soon after boot, Open vSwitch had no threads for packets. Guests inside a
    // guest are not supported.
    let is_meant = |mode: &&&dyn Mode| !is_as_another(mode.name()) && !mode.in_guests();
    for mode in modes().iter().rev().filter(is_meant) {
        match mode.probe(&machine) {
            Err(unsupported) => {
                println!("mode\t{}\tunsupported\t{}", mode.name(), unsupported.reason)
            }
            Ok(()) => {
                for (mtu, offload) in [(9000, Offload::None), (1500, Offload::Full)] {
                    let (hops, notes) = drive(*mode, &Params::new(mtu, offload));
                    println!("mode\t{}\tok\t{mtu} {offload}\t{hops}\t{notes}", mode.name());
                }
            }
        }
    }
}

/// The hops with their bytes, and the notes.
fn drive(mode: &dyn Mode, params: &Params) -> (String, String) {
    let network =
        mode.build(params).unwrap_or_else(|error| panic!("{} {params:?}: {error}", mode.name()));
    eprintln!("{} {params:?}", mode.name());
    echo(&network, &[1, 1400, 1472, 1473, 20_000]);
    stream_both_ways(&network);
    let first = &network.hops[0].device;
    // Linux 6.1 answers UDP_SEGMENT with EIO on a device without it (a TAP).
    if network.client().features(first).unwrap()["tx-checksum-ip-generic"].active {
        segmented_datagrams_arrive(&network);
    }
    let mut hops = Vec::new();
    for hop in network.hops.iter().filter(|hop| hop.bypass.is_none()) {
        let counters = match (&hop.meter, hop.kind) {
            (Some(meter), _) => meter.read().carried,
            (None, HopKind::Device) => {
                network.host(&hop.host).unwrap().netlink().link(&hop.device).unwrap().counters
            }
            // A process counts with its namespace.
            (None, _) => continue,
        };
        let bytes = match hop.forward {
            Side::Rx => counters.rx_bytes,
            Side::Tx => counters.tx_bytes,
        };
        hops.push(format!("{}/{}={bytes}", hop.host, hop.device));
    }
    (hops.join(" "), network.notes.join("; "))
}

#[test]
fn every_mode_works_on_a_stock_kernel() {
    if qemu::is_inside() {
        return report_on_every_mode();
    }
    let guest = require!(Guest::find());
    let here = std::env::current_exe().unwrap();
    let output = guest.run(&here, &["--exact", INSIDE, "--nocapture"]);
    assert_eq!(output.status, Some(0), "{output:#?}");
    let mut ok: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // The test harness may have printed text before it on the same line.
    for line in output.stdout.lines().filter_map(|line| line.split_once("mode\t")) {
        let fields: Vec<_> = line.1.split('\t').collect();
        match fields[..] {
            [name, "unsupported", reason] => {
                println!("{name}: {reason}");
                // Debian 12's kernel is 6.1.
                let too_old = name.ends_with("+accel") && reason.contains("needs Linux 6.6")
                    || name.ends_with("-uring") && reason.contains("(Linux 6.7)");
                // Docker does not fit into its memory.
                let left_out =
                    name.starts_with("swarm") && reason.starts_with("Docker is not installed");
                assert!(
                    too_old || left_out || reason.ends_with("is not installed"),
                    "a stock kernel lacks nothing, this machine perhaps a program: {name}: {reason}"
                );
            }
            [name, "ok", built, hops, notes] => {
                println!("{name} ({built}): {hops} {notes}");
                for hop in hops.split(' ') {
                    let (_, bytes) = hop.split_once('=').unwrap();
                    assert!(bytes.parse::<usize>().unwrap() > BYTES, "{name} ({built}): {hops}");
                }
                ok.entry(name).or_default().extend([hops, notes]);
            }
            _ => panic!("{line:?}"),
        }
    }
    assert!(ok["vlan"][0].contains("a/nic0.100=") && ok["ipvlan"].len() == 4);
    assert!(ok.get("vrouter-vlan").is_none_or(|said| said[0].contains("network/nic1.102=")));
    for name in ["ovs-vlan", "ovs-vxlan", "vrouter-ovs", "vrouter-ovs-vlan"] {
        let notes = ok.get(name).map(|said| said[1]);
        assert!(notes.is_none_or(|notes| notes.contains("kernel datapath")), "{notes:?}");
    }
}

#[test]
fn a_guest_reports_status_output_and_files() {
    let guest = require!(Guest::find());
    let script = "busybox uname -r; echo it\\'s >&2; printf '\\000\\377\\n' >/r.bin; exit 7";
    let output = guest
        .fetching("/no-such-file")
        .fetching("/r.bin")
        .run(Path::new("/bin/sh"), &["-c", script]);
    assert_eq!(output.status, Some(7), "{output:#?}");
    assert_eq!(output.stderr, "it's\n");
    assert_eq!(output.stdout.lines().count(), 1);
    assert!(output.console.contains("Power down"), "{}", output.console);
    assert_eq!(output.files, [("/r.bin".to_owned(), b"\0\xff\n".to_vec())]);
}

#[test]
fn a_program_that_hangs_is_killed_and_the_guest_ends() {
    let guest = require!(Guest::find());
    let output = guest
        .within(std::time::Duration::from_secs(1))
        .run(Path::new("/bin/sh"), &["-c", "echo here; while :; do :; done"]);
    assert_eq!((output.status, output.stdout.as_str()), (Some(137), "here\n"), "{output:#?}");
}
