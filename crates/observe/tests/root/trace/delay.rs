//! A queue that delays packets is found by the steps before and after it.

use std::process::Command;

use observe::Packet;
use test_support::require;
use testbed::Offload;

use super::network;
use super::seen::{Seen, begins_in, is_arrived};
use super::traffic::{Datagrams, port};

/// Queues on a datagram's path, from the client on.
const QUEUES: [(&str, &str); 4] =
    [("tenant-a", "eth0"), ("a", "vxlan0"), ("a", "nic0"), ("b", "veth0")];

/// 1000 bytes and headers last 5 ms and more at this rate.
const RATE: &str = "1600kbit";

/// Step, host and device.
type Place<'p> = (&'p str, &'p str, Option<&'p str>);

/// The longest time between two steps, ns, and the two steps.
fn longest(packet: &Packet) -> Option<(u64, [Place<'_>; 2])> {
    let place = |at: usize| {
        let step = &packet.steps[at];
        (step.what.as_str(), step.namespace.as_str(), step.device.as_deref())
    };
    // Its reader waits for a CPU, not in a queue of the network.
    let last = packet.steps.iter().rposition(|step| step.what == "received")? + 1;
    let gaps = (1..last).map(|at| {
        let gap = packet.steps[at].after_ns - packet.steps[at - 1].after_ns;
        (gap, [place(at - 1), place(at)])
    });
    gaps.max_by_key(|(gap, _)| *gap)
}

#[test]
fn a_queue_that_holds_packets_is_found() {
    println!("queue            longest gap  of packets  found");
    for (host, device) in QUEUES {
        let network = require!(network("vxlan", Offload::Full));
        let port = port();
        let datagrams = Datagrams::new(&network, port);
        let shape = format!("qdisc add dev {device} root tbf rate {RATE} burst 2kb limit 100kb");
        let mut command = Command::new("tc");
        network.host(host).unwrap().run(command.args(shape.split(' '))).unwrap();
        let mut seen = Seen::of_port(&network, port);
        let act = || {
            for _ in 0..10 {
                datagrams.send(1000);
            }
            while datagrams.receive() {}
        };
        // The first packets use up the queue's token credit; a busy machine holds packets elsewhere
        // at times.
        let (gap, all) = seen.until(&format!("the queue of {device}"), act, |packets| {
            let gaps: Vec<_> = packets
                .iter()
                .filter(|packet| begins_in(packet, "tenant-a") && is_arrived(packet, "tenant-b"))
                .filter_map(longest)
                .collect();
            let wanted = [("queued", host, Some(device)), ("sent", host, Some(device))];
            let is_held = |(gap, steps): &&(u64, [_; 2])| *gap >= 4_000_000 && *steps == wanted;
            let held = gaps.iter().filter(is_held).map(|(gap, _)| *gap);
            let count = held.clone().count();
            match held.max() {
                Some(gap) if count * 2 > gaps.len() => Ok((gap, gaps.len())),
                _ => Err(format!("{gaps:?}")),
            }
        });
        let place = format!("{host} {device}");
        println!("{place:<16} {:>8.1} ms  {all:>10}  yes", gap as f64 / 1e6);
    }
}
