//! Packets followed on kernels that people run: Debian's 6.1 and 6.12, in QEMU guests.
//! Functional only.

#[path = "../../lab/tests/guest/qemu.rs"]
#[allow(dead_code, reason = "lab/tests/guest.rs asks more of it")]
mod qemu;
#[path = "trace/seen.rs"]
#[allow(dead_code, reason = "tests/trace asks more of it")]
mod seen;
#[path = "trace/traffic.rs"]
#[allow(dead_code, reason = "tests/trace asks more of it")]
mod traffic;

use std::time::Duration;

use lab::Params;
use observe::{Filter, Packet};
use qemu::Guest;
use seen::{Seen, begins_in, cut_at, drops, is_arrived, is_from, was_at};
use test_support::require;
use testbed::Offload;
use traffic::{Datagrams, port, stream};

/// How long a guest in software emulation may take for what takes no time.
const LIMIT: Duration = Duration::from_secs(120);
/// The test that the guests run, out of this same program: it does the part inside.
const INSIDE: &str = "packets_are_followed_on_older_kernels";

/// Prints a line for each thing that was seen as it should be.
fn follow_packets() {
    let network = lab::find("vxlan")
        .unwrap()
        .build(&Params { mtu: 1500, offload: Offload::NoTunnel })
        .unwrap();
    let (client, server) = (network.client().name(), network.server().name());

    let of_datagrams = port();
    let datagrams = Datagrams::new(&network, of_datagrams);
    let flows = |port: u16| vec![format!("*:{port}").parse().unwrap()];
    let filter = Filter { flows: flows(of_datagrams), ..Filter::default() };
    let mut seen = Seen::on_any_kernel(&network, filter);
    for what in seen.not_seen() {
        println!("not seen: {what}");
    }
    let act = || {
        datagrams.send(100);
        datagrams.receive();
    };
    seen.until("a datagram from socket to socket", act, |packets| {
        let is = |packet: &&Packet| {
            begins_in(packet, client)
                && is_arrived(packet, server)
                && was_at(packet, "a", "vxlan0")
                && was_at(packet, "b", "nic0")
        };
        packets.iter().find(is).map(|_| ()).ok_or_else(|| "none".to_owned())
    });
    println!("followed");

    drop(datagrams.server);
    let unread = traffic::datagrams(network.client(), port());
    let target = network.address.target;
    drop(seen);
    let of_unread = unread.local_addr().unwrap().port();
    let filter = Filter { flows: flows(of_unread), ..Filter::default() };
    let mut seen = Seen::on_any_kernel(&network, filter);
    let act = || {
        unread.send_to(&[7; 100], target).unwrap();
    };
    seen.until("a datagram that nobody reads", act, |packets| {
        let mut all = packets.iter().flat_map(drops);
        all.find(|(step, reason, _)| step.namespace == server && *reason == "NO_SOCKET")
            .map(|_| ())
            .ok_or_else(|| "no drop".to_owned())
    });
    println!("dropped");
    drop(seen);

    let of_stream = port();
    let filter = Filter { flows: flows(of_stream), ..Filter::default() };
    let mut seen = Seen::on_any_kernel(&network, filter);
    stream(&network, of_stream);
    seen.rest();
    let sent = seen.packets.iter().filter(|packet| is_from(packet, "tcp", of_stream));
    let mut places: Vec<_> = sent.flat_map(cut_at).collect();
    places.sort();
    places.dedup();
    println!("cut at {places:?}");
}

/// What a kernel cannot tell has to be what `not_seen` says, and nothing else.
fn on(guest: Guest, not_seen: &[&str]) {
    let program = std::env::current_exe().unwrap();
    let output = guest.run(&program, &["--exact", INSIDE, "--nocapture"]);
    println!("{}", output.stdout);
    let told = output.stdout.lines().filter_map(|line| line.strip_prefix("not seen: "));
    assert_eq!(told.collect::<Vec<_>>(), not_seen);
    for line in ["followed", "dropped", "cut at [(\"a\", \"nic0\")]"] {
        assert!(output.stdout.lines().any(|told| told == line), "{line}: {output:#?}");
    }
}

#[test]
fn packets_are_followed_on_older_kernels() {
    if qemu::is_inside() {
        return follow_packets();
    }
    let of_6_1 = ["datagrams that sockets receive: no trace point sk_data_ready"];
    on(require!(Guest::find()).with_programs(&["sleep"]), &of_6_1);
    on(require!(Guest::of_series("6.12")).with_programs(&["sleep"]), &[]);
}
