use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;
use crate::flow::{Flow, Hook, Interface, Place, Step, Transport, Tuple, Verdict};

/// An entry with a standard target, or the head of a chain.
pub(super) fn entry(
    ipv6: bool,
    change: impl FnOnce(&mut [u8]),
    target: Result<i32, &str>,
) -> Vec<u8> {
    let layout = if ipv6 { IPV6 } else { IPV4 };
    let target_bytes = if target.is_ok() { 40 } else { 64 };
    let mut bytes = vec![0; layout.matches + target_bytes];
    bytes[layout.target..][..2].copy_from_slice(&(layout.matches as u16).to_ne_bytes());
    let length = bytes.len() as u16;
    bytes[layout.target + 2..][..2].copy_from_slice(&length.to_ne_bytes());
    bytes[layout.matches..][..2].copy_from_slice(&(target_bytes as u16).to_ne_bytes());
    match target {
        Ok(verdict) => bytes[layout.matches + HEAD..][..4].copy_from_slice(&verdict.to_ne_bytes()),
        Err(name) => {
            bytes[layout.matches + 2..][..5].copy_from_slice(b"ERROR");
            bytes[layout.matches + HEAD..][..name.len()].copy_from_slice(name.as_bytes());
        }
    }
    change(&mut bytes);
    bytes
}

pub(super) fn always(_: &mut [u8]) {}

pub(super) fn udp(bytes: &mut [u8]) {
    bytes[80] = 17;
}

/// A table `filter` with `INPUT` alone, and chains of its own.
pub(super) fn table(input: &[Vec<u8>], others: &[Vec<u8>]) -> Table {
    let last: usize = input[..input.len() - 1].iter().map(Vec::len).sum();
    let mut hooks = [None; 5];
    hooks[1] = Some((0, last as u32));
    Table { hooks, entries: [input.concat(), others.concat()].concat() }
}

fn verdict(table: &Table) -> Verdict {
    let mut rules = Ruleset::default();
    rules.add_table(false, "filter", table);
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    let tuple = Tuple { source: (address(2), 999), destination: (address(1), 4789) };
    let flow = Flow {
        tuple,
        other: tuple.reversed(),
        any_source_port: true,
        any_address: None,
        asks_nat: false,
        transport: Transport::Udp,
        connection: None,
        mark: 0,
        address_types: Vec::new(),
    };
    let input = Some(Interface { index: 2, name: "eth0".to_owned() });
    let (output, port_in, port_out) = (None, None, None);
    rules
        .verdict(
            &flow,
            &[Step { hook: Hook::Input, input, output, port_in, port_out, hardware_source: None }],
        )
        .verdict
}

fn drop_at(chain: &str, handle: Option<u64>) -> Verdict {
    let (family, table, chain) = (2, "filter".to_owned(), chain.to_owned());
    Verdict::Drop { at: Place { family, table, chain, handle, is_legacy: true } }
}

#[test]
fn policy_rules_and_jumps_decide_as_the_kernel_does() {
    let policy = |verdict| entry(false, always, Ok(verdict));
    let tail = [entry(false, always, Err("ERROR"))];
    assert_eq!(verdict(&table(&[policy(ACCEPT)], &tail)), Verdict::Accept);
    assert_eq!(verdict(&table(&[policy(DROP)], &tail)), drop_at("INPUT", None));
    let drops_udp = [entry(false, always, Ok(152)), entry(false, udp, Ok(DROP)), policy(ACCEPT)];
    assert_eq!(verdict(&table(&drops_udp, &tail)), drop_at("INPUT", Some(2)));
    let accepts_udp = [entry(false, udp, Ok(ACCEPT)), policy(DROP)];
    assert_eq!(verdict(&table(&accepts_udp, &tail)), Verdict::Accept);
    // A jump into a chain that drops; a goto whose chain returns to the policy.
    let start = 2 * 152 + 176;
    let own = |rule| [entry(false, always, Err("OWN")), rule, entry(false, always, Ok(RETURN))];
    let others = |rule| [&own(rule)[..], &tail].concat();
    let jumps = [entry(false, always, Ok(start)), policy(ACCEPT)];
    let drops = others(entry(false, udp, Ok(DROP)));
    assert_eq!(verdict(&table(&jumps, &drops)), drop_at("OWN", Some(1)));
    let returns = others(entry(false, udp, Ok(RETURN)));
    assert_eq!(verdict(&table(&jumps, &returns)), Verdict::Accept);
}

#[test]
fn conditions_are_compared_with_their_masks() {
    let tail = [entry(false, always, Err("ERROR"))];
    let drops = |change: &dyn Fn(&mut [u8])| {
        let all = [entry(false, change, Ok(DROP)), entry(false, always, Ok(ACCEPT))];
        verdict(&table(&all, &tail)) != Verdict::Accept
    };
    let source = |bytes: &mut [u8], address: [u8; 4], mask: [u8; 4]| {
        bytes[..4].copy_from_slice(&address);
        bytes[8..12].copy_from_slice(&mask);
    };
    assert!(drops(&|bytes| source(bytes, [10, 0, 0, 0], [255, 255, 255, 0])));
    assert!(!drops(&|bytes| source(bytes, [10, 0, 1, 0], [255, 255, 255, 0])));
    let not = |bytes: &mut [u8], flag| bytes[83] = flag;
    assert!(drops(&|bytes| {
        source(bytes, [10, 0, 1, 0], [255, 255, 255, 0]);
        not(bytes, NOT_SOURCE);
    }));
    // A name has its final zero in the mask, a prefix (`et+`) has not.
    for (name, mask, is_same) in
        [("eth0", 5, true), ("et", 2, true), ("et", 3, false), ("eth01", 6, false)]
    {
        let device = |bytes: &mut [u8]| {
            bytes[16..][..name.len()].copy_from_slice(name.as_bytes());
            bytes[48..][..mask].fill(0xff);
        };
        assert_eq!(drops(&device), is_same, "{name} {mask}");
    }
    // A flow has no fragments.
    assert!(!drops(&|bytes| bytes[82] = FRAGMENTS));
    assert!(drops(&|bytes| {
        bytes[82] = FRAGMENTS;
        not(bytes, NOT_FRAGMENT);
    }));
}

#[test]
fn an_unknown_target_is_no_verdict() {
    let strange = |bytes: &mut [u8]| bytes[112 + 2..][..4].copy_from_slice(b"WHAT");
    let all = [entry(false, strange, Ok(0)), entry(false, always, Ok(ACCEPT))];
    let verdict = verdict(&table(&all, &[entry(false, always, Err("ERROR"))]));
    assert!(matches!(verdict, Verdict::NotUnderstood { .. }), "{verdict}");
}

proptest! {
    /// A table of the kernel has no such contents; the rest of the program lives on.
    #[test]
    fn broken_tables_never_panic(
        cut in 0..900_usize,
        changes in prop::collection::vec((0..900_usize, any::<u8>()), 0..12),
        hooks: [Option<(u32, u32)>; 5],
        ipv6: bool,
    ) {
        let entries = [
            entry(ipv6, always, Ok(152)),
            entry(ipv6, always, Ok(ACCEPT)),
            entry(ipv6, always, Err("OWN")),
            entry(ipv6, always, Ok(DROP)),
        ];
        let mut entries = entries.concat();
        for (at, value) in changes {
            if let Some(byte) = entries.get_mut(at) {
                *byte = value;
            }
        }
        entries.truncate(cut);
        let mut table = Table { hooks, entries };
        let mut rules = Ruleset::default();
        rules.add_table(ipv6, "filter", &table);
        table.hooks[1] = Some((0, 152));
        let _ = verdict(&table);
    }
}
