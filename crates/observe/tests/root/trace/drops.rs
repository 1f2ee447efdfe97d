//! Every kind of packet loss is reported with its reason and its place.

use lab::Network;
use observe::Packet;
use test_support::{left_out, require, some_at_once};
use testbed::Offload;

use super::cases::{Bed, CASES, Case};
use super::seen::{Seen, drops};
use super::traffic::{Datagrams, port};
use super::{network, privileged};

/// Place of a drop, its reason, and the kernel's function.
type DropRecord = (String, Option<String>, String, String);

fn reported(packet: &Packet) -> Vec<DropRecord> {
    let reported = drops(packet).map(|(step, reason, function)| {
        (step.namespace.clone(), step.device.clone(), reason.to_owned(), function.to_owned())
    });
    reported.collect()
}

fn bed(network: &Network) -> Bed<'_> {
    let port = port();
    let Datagrams { client, server, .. } = Datagrams::new(network, port);
    Bed { network, port, client, server }
}

/// Reports of a case: the expected drop, and others before it.
fn run(case: &Case) -> Result<(DropRecord, String), String> {
    let network = network(case.mode, Offload::Full)?;
    let bed = bed(&network);
    let port = bed.port;
    let mut round = (case.make)(bed);
    let mut flows = vec![format!("*:{port}")];
    if case.check == "OV021" {
        // Only the first fragment has ports.
        flows.push("10.1.0.11 -> 10.1.0.12/udp".to_owned());
    }
    let mut seen = Seen::of(&network, &flows);
    let (host, device) = case.place;
    let mut others = Vec::new();
    let found = testbed::poll(case.name, std::time::Duration::from_secs(10), || {
        round();
        seen.look();
        others = seen.packets.iter().flat_map(reported).collect();
        let wanted = seen.packets.iter().find_map(|packet| {
            let is = |reported: &DropRecord| {
                reported.0 == host && reported.1.as_deref() == device && reported.2 == case.reason
            };
            Some((reported(packet).into_iter().find(is)?, packet.text()))
        });
        Ok(wanted.ok_or_else(String::new))
    });
    found.map_err(|_| {
        others.sort();
        others.dedup();
        format!("reported instead: {others:?}\n{}", seen.text())
    })
}

#[test]
fn every_drop_is_reported_with_its_reason_and_place() {
    let machine = require!(privileged());
    let is_possible = |case: &&Case| {
        let probed = lab::find(case.mode).unwrap().probe(&machine);
        let missing = probed.err();
        missing.iter().for_each(|missing| left_out(&format!("{}: {}", case.name, missing.reason)));
        missing.is_none()
    };
    let cases: Vec<&Case> = CASES.iter().filter(is_possible).collect();
    let lines = some_at_once(&cases, |case| {
        let mut problems = Vec::new();
        let (host, device) = case.place;
        let place = format!("{host} {}", device.unwrap_or("-"));
        let (is_reported, function) = match run(case) {
            Ok(((_, _, _, function), _)) => ("yes", function),
            Err(problem) => {
                problems.push(format!("{}: {problem}", case.name));
                ("NO", "?".to_owned())
            }
        };
        let Case { name, check, mode, reason, .. } = case;
        let line = format!(
            "{name:<41} {check:<6} {mode:<13} {reason:<25} {place:<17} {is_reported:<6} {function}"
        );
        (line, problems)
    });
    let (table, problems): (Vec<_>, Vec<_>) = lines.into_iter().unzip();
    let problems = problems.concat();
    println!(
        "{:<41} {:<6} {:<13} {:<25} {:<17} named  by",
        "case", "check", "mode", "reason", "where"
    );
    println!("{}", table.join("\n"));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// moby#53004: flow, hop, reason and cause in one text.
#[test]
fn an_outer_source_other_than_the_entry_s_is_reported_with_its_cause() {
    require!(network("vxlan", Offload::Full));
    let case = CASES.iter().find(|case| case.reason == "VXLAN_ENTRY_EXISTS").unwrap();
    let (_, text) = run(case).unwrap();
    println!("{text}");
    for part in [
        "10.1.0.11:",
        "-> 10.1.0.12:5301 udp",
        "in VXLAN 42 10.0.0.7:",
        "-> 10.0.0.2:4789 udp",
        "DROPPED: VXLAN_ENTRY_EXISTS",
        "static entry that maps the sender's MAC address to another remote endpoint",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let dropped = text.lines().find(|line| line.contains("dropped")).unwrap();
    assert!(dropped.contains(" b ") && dropped.contains("vxlan0"), "{dropped}");
}
