//! Rust mirrors of the structs in `bpf/abi.h`, and conversions from the plan's data.
//!
//! `build.rs` reads layouts, flags and reason names as clang compiled them. A field that is
//! missing, moved or of another size on either side fails the build.

use std::net::IpAddr;

use packet::ethernet::MacAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::model::{DeviceId, Domain, Fdb, Reason, UnderlayRoute, Vtep, VtepKey};

/// `struct state`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawState {
    /// `CLOCK_MONOTONIC`, ns.
    pub(crate) heartbeat: u64,
    /// Odd while entries are rewritten.
    pub(crate) generation: u64,
    /// Interval at which one packet of an entry takes the slow path, ns.
    pub(crate) refresh: u64,
    /// Verdicts on flows with another number are void. 0: no verdicts are given.
    pub(crate) verdicts: u64,
    /// Generation of the nftables rules that the maps were made for. 0: unknown.
    pub(crate) rules: u32,
    pub(crate) padding: u32,
    /// Lists of functions at netfilter's hooks that the maps were made for.
    pub(crate) hooks: [u64; HOOK_LISTS],
}

/// Number of lists in `struct hook_lists`.
pub(crate) const HOOK_LISTS: usize = 15;

/// `struct hook_lists`.
#[repr(C)]
#[derive(IntoBytes, Immutable, FromBytes)]
pub(crate) struct RawHookLists {
    pub(crate) lists: [u64; HOOK_LISTS],
}

/// `struct constants`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawConstants {
    /// 1: the copy for sandboxes.
    pub(crate) in_sandbox: u32,
    pub(crate) tick: u32,
    /// `DECAP_*`.
    pub(crate) decap: u32,
    pub(crate) padding: u32,
}

/// `struct entrance`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawEntrance {
    pub(crate) netns: u32,
}

/// `struct symbols`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoBytes, Immutable)]
pub(crate) struct RawSymbols {
    pub(crate) secmark: u64,
    pub(crate) netlabel: u64,
    pub(crate) ipsec: u64,
    pub(crate) state: u64,
}

/// `struct labelling`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, IntoBytes, Immutable, FromBytes)]
pub(crate) struct RawLabelling {
    pub(crate) flags: u32,
    pub(crate) secmark: u32,
    pub(crate) netlabel: u32,
    pub(crate) ipsec: u32,
}

/// `struct flow_key`. Big-endian fields are byte arrays here.
#[repr(C)]
#[derive(Debug, Clone, Copy, IntoBytes, Immutable, FromBytes)]
pub(crate) struct RawFlowKey {
    pub(crate) netns: u32,
    pub(crate) device: u32,
    pub(crate) source: [u8; 16],
    pub(crate) dest: [u8; 16],
    pub(crate) source_port: [u8; 2],
    pub(crate) dest_port: [u8; 2],
    pub(crate) protocol: u8,
    pub(crate) ipv6: u8,
    pub(crate) place: u16,
}

/// `struct flow`.
#[repr(C)]
#[derive(IntoBytes, Immutable, FromBytes)]
pub(crate) struct RawFlow {
    pub(crate) verdict: u64,
    pub(crate) refreshed: u64,
    pub(crate) flags: u32,
    pub(crate) output: u32,
    pub(crate) mark: u32,
    pub(crate) timeout: u32,
    pub(crate) source: [u8; 16],
    pub(crate) dest: [u8; 16],
    pub(crate) source_port: [u8; 2],
    pub(crate) dest_port: [u8; 2],
    pub(crate) status: u32,
    pub(crate) expires: u32,
    pub(crate) connection: u32,
    pub(crate) serial: u32,
    pub(crate) unused: u32,
    /// Cached by the programs: properties of the routes.
    pub(crate) way_back: u64,
}

/// `struct bpf_spin_lock`. The kernel neither reads nor writes it for user space.
#[repr(C)]
#[derive(Default, IntoBytes, Immutable, FromBytes)]
pub(crate) struct RawLock(u32);

/// `struct window`.
#[repr(C)]
#[derive(Default, IntoBytes, Immutable, FromBytes)]
pub(crate) struct RawWindow {
    end: u32,
    maxend: u32,
    maxwin: u32,
    maxack: u32,
    scale: u16,
    sack: u16,
}

/// `struct connection`.
#[repr(C)]
#[derive(Default, IntoBytes, Immutable, FromBytes)]
pub(crate) struct RawConnection {
    pub(crate) lock: RawLock,
    pub(crate) serial: u32,
    pub(crate) state: u32,
    pub(crate) last: u32,
    pub(crate) copied: u64,
    pub(crate) seen: [RawWindow; 2],
    pub(crate) last_end: u32,
    pub(crate) flags: u32,
    pub(crate) syn_end: u32,
    pub(crate) last_kind: u32,
}

/// `struct tracked`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawTracked {
    pub(crate) connection: u32,
    pub(crate) reply: u32,
}

/// `struct seen`.
#[repr(C)]
#[derive(IntoBytes, Immutable, FromBytes)]
pub(crate) struct RawSeen {
    pub(crate) verdict: u64,
    pub(crate) asked: u64,
    pub(crate) packets: u64,
    pub(crate) noted: u64,
}

/// `struct device`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawDevice {
    netns: u32,
    ifindex: u32,
}

/// `struct port`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawPort {
    domain: u32,
    slot: u32,
}

/// `struct vtep_key`. Big-endian fields are byte arrays here.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawVtepKey {
    vni: [u8; 4],
    port: [u8; 2],
    ipv6: u16,
}

/// `struct vtep`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawVtep {
    domain: u32,
    nic: u32,
    netns: u32,
    crossing: u32,
    flags: u32,
    vxlan: u32,
    local: [u8; 16],
    slot: u32,
    pad: u32,
}

/// `struct mac_key`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawMacKey {
    device: u32,
    mac: [u8; 6],
    netns: u16,
}

/// `struct source`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawSource {
    refreshed: u64,
    domain: u32,
    crossing: u32,
    flags: u32,
    slot: u32,
}

/// `struct fdb`.
#[repr(C)]
#[derive(Default, IntoBytes, Immutable)]
pub(crate) struct RawFdb {
    refreshed_tx: u64,
    refreshed_rx: u64,
    flags: u32,
    port: u32,
    mtu: u32,
    netns: u32,
    vxlan: u32,
    vni: [u8; 4],
    remote: [u8; 16],
    local: [u8; 16],
    udp_port: [u8; 2],
    port_min: u16,
    port_max: u16,
    frag_off: [u8; 2],
    ttl: u8,
    tos: u8,
    outer_dest: [u8; 6],
    outer_source: [u8; 6],
    pseudo: u16,
    label: [u8; 4],
    slot: u32,
    gso4: u32,
    gso6: u32,
}

/// `struct count`.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
pub(crate) struct RawCount {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// Asserts that a struct matches the header: its size and the offset of each field. `IntoBytes`
/// rules out padding, so field sizes match, too.
macro_rules! layout {
    ($name:ident, $size:literal, { $($field:ident: $offset:literal,)* }) => {
        const _: () = {
            assert!(
                size_of::<$name>() == $size,
                concat!("bpf/abi.h: size of ", stringify!($name), " is ", $size),
            );
            $(assert!(
                std::mem::offset_of!($name, $field) == $offset,
                concat!("bpf/abi.h: ", stringify!($name.$field), " is at byte ", $offset),
            );)*
            // Fail if the struct has a field that the header lacks.
            const fn _fields(raw: &$name) {
                let $name { $($field: _),* } = raw;
            }
        };
    };
}

include!(concat!(env!("OUT_DIR"), "/abi_layout.rs"));

const _: () = {
    assert!(Reason::ALL.len() == REASONS.len(), "bpf/abi.h: as many reasons as in Reason");
    let mut at = 0;
    while at < REASONS.len() {
        let same = are_same(Reason::ALL[at].word().as_bytes(), REASONS[at].as_bytes());
        assert!(same, "bpf/abi.h: enum reason has the names of Reason, in its order");
        at += 1;
    }
};

/// Compares two words. `==` on slices is not const.
const fn are_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Returns the bytes of a struct for a map.
pub(crate) fn bytes(raw: &(impl IntoBytes + Immutable)) -> Vec<u8> {
    raw.as_bytes().to_vec()
}

pub(crate) fn flag(set: bool, flag: u32) -> u32 {
    if set { flag } else { 0 }
}

/// Returns an address as four words; an IPv4 address uses the first word.
pub(crate) fn four_words(address: IpAddr) -> [u8; 16] {
    let mut words = [0; 16];
    match address {
        IpAddr::V4(address) => words[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => words = address.octets(),
    }
    words
}

/// Makes the key of a tenant's device.
pub(crate) fn device(id: DeviceId) -> RawDevice {
    RawDevice { netns: id.netns.into(), ifindex: id.index }
}

fn domain_flags(domain: &Domain) -> u32 {
    flag(domain.checked, DOMAIN_CHECKED)
        | flag(domain.rules, DOMAIN_RULES)
        | flag(domain.rules_ipv6, DOMAIN_RULES_IPV6)
}

/// Makes the key of a VTEP.
pub(crate) fn vtep_key(key: &VtepKey) -> RawVtepKey {
    RawVtepKey {
        // The VNI uses the first three bytes, as in the VXLAN header.
        vni: (key.vni << 8).to_be_bytes(),
        port: key.port.to_be_bytes(),
        ipv6: key.ipv6.into(),
    }
}

/// Converts a VTEP that counts in `slot`.
pub(crate) fn vtep(vtep: &Vtep, slot: u32) -> RawVtep {
    let zero = flag(vtep.takes_zero_checksum, VTEP_ZERO_CHECKSUM);
    RawVtep {
        domain: vtep.domain.id.index,
        nic: vtep.nic,
        netns: vtep.domain.id.netns.into(),
        crossing: vtep.domain.crossing.map_or(0, |(_, outer)| outer),
        flags: domain_flags(&vtep.domain)
            | zero
            | flag(vtep.takes_big, VTEP_BIG)
            | flag(vtep.merges, VTEP_MERGES),
        vxlan: vtep.vxlan,
        local: four_words(vtep.local),
        slot,
        pad: 0,
    }
}

/// Makes the key of an address in a domain, or at one of its ports.
pub(crate) fn mac_key(device: DeviceId, mac: MacAddr) -> RawMacKey {
    RawMacKey { device: device.index, mac: mac.0, netns: device.netns }
}

/// Converts a port that counts in `slot`.
pub(crate) fn port(domain: &Domain, slot: u32) -> RawPort {
    RawPort { domain: domain.id.index, slot }
}

/// Makes an unused source entry that counts in `slot`.
pub(crate) fn source(domain: &Domain, slot: u32) -> RawSource {
    RawSource {
        refreshed: 0,
        domain: domain.id.index,
        crossing: domain.crossing.map_or(0, |(inner, _)| inner),
        flags: domain_flags(domain),
        slot,
    }
}

/// Computes the part of the outer UDP checksum that all packets share: the pseudo header without
/// the length, summed in memory order, in one's complement (RFC 768, RFC 8200 section 8.1).
fn pseudo(route: &UnderlayRoute) -> u16 {
    const UDP: [u8; 2] = [0, 17];
    let addresses = [four_words(route.local), four_words(route.remote)];
    let pairs = addresses.iter().flat_map(|address| address.as_chunks::<2>().0).chain([&UDP]);
    let sum: u32 = pairs.map(|pair| u32::from(u16::from_ne_bytes(*pair))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    // With at most 17 words the carry is small, so this addition cannot overflow.
    (folded & 0xffff) as u16 + (folded >> 16) as u16
}

/// Converts a forwarding entry that counts in `slot`. It has not been used yet.
pub(crate) fn fdb(entry: &Fdb, slot: u32) -> RawFdb {
    /// RFC 791: don't fragment.
    const DF: u16 = 0x4000;
    match entry {
        Fdb::Local { port, mtu, peer } => RawFdb {
            flags: FDB_LOCAL | flag(peer.is_some(), FDB_PEER),
            port: *port,
            mtu: *mtu,
            netns: peer.unwrap_or(0),
            slot,
            ..RawFdb::default()
        },
        Fdb::RouterMac { ipv6 } => {
            // The route lookup provides the output device, so other fields are unused.
            RawFdb { flags: FDB_ROUTER_MAC | flag(*ipv6, FDB_ROUTER_MAC_IPV6), ..RawFdb::default() }
        }
        Fdb::Remote(route) => RawFdb {
            flags: flag(route.checksum, FDB_CHECKSUM)
                | flag(route.proxy, FDB_PROXY)
                | flag(route.inherits_tos, FDB_INNER_TOS)
                | flag(route.remote.is_ipv6(), FDB_IPV6),
            port: route.nic,
            mtu: route.mtu,
            vxlan: route.vxlan,
            vni: (route.vni << 8).to_be_bytes(),
            remote: four_words(route.remote),
            local: four_words(route.local),
            udp_port: route.udp_port.to_be_bytes(),
            port_min: route.source_ports.0,
            port_max: route.source_ports.1,
            frag_off: if route.dont_fragment { DF } else { 0 }.to_be_bytes(),
            ttl: route.ttl,
            tos: route.tos,
            outer_dest: route.next_hop.0,
            outer_source: route.source.0,
            pseudo: pseudo(route),
            label: route.label.to_be_bytes(),
            slot,
            gso4: route.gso.ipv4,
            gso6: route.gso.ipv6,
            ..RawFdb::default()
        },
    }
}
