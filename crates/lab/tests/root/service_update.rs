//! Updates a service of a real Swarm during traffic on the fast path.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::{Capabilities, Network, Params};
use netstate::HopKind;
use test_support::{need, require};
use testbed::{Host, Offload, Privileges, poll};

const LIMIT: Duration = Duration::from_secs(60);
const SERVICE: &str = "updated";
const GAP: Duration = Duration::from_millis(1);

/// Runs Docker's client with the engine of host `name`; returns its output.
fn docker(network: &Network, name: &str, arguments: &[&str]) -> String {
    let init = network.init_pid(name).unwrap();
    let socket = format!("unix:///proc/{init}/root/run/docker/sock");
    let mut command = Command::new("docker");
    // Without the machine's configuration.
    command.args(["--config", "/nonexistent", "--host", &socket]).args(arguments);
    network.host(name).unwrap().run(&mut command).unwrap()
}

/// The address of the service's task in host `name`.
fn task(network: &Network, name: &str) -> IpAddr {
    let filter = format!("name={SERVICE}.");
    let ids = docker(network, name, &["ps", "--quiet", "--filter", &filter]);
    let id = ids.lines().next().unwrap_or_else(|| panic!("no task in {name}"));
    let format = "{{.NetworkSettings.Networks.overlay.IPAddress}}";
    docker(network, name, &["inspect", "--format", format, id]).trim().parse().unwrap()
}

/// Packets that the fast path of host `name` has sent and received.
fn carried(network: &Network, name: &str) -> [u64; 2] {
    let stage = |hop: &&netstate::Hop| hop.host == name && hop.kind == HopKind::Stage;
    let hop = network.hops.iter().find(stage).unwrap();
    let counters = hop.meter.as_ref().unwrap().read().carried;
    [counters.tx_packets, counters.rx_packets]
}

/// Pings a task until both directions take the fast path.
fn is_taken(network: &Network, task: IpAddr) {
    poll(&format!("the fast path to {task}"), LIMIT, || {
        let before = carried(network, "a");
        let mut ping = Command::new("ping");
        ping.args(["-n", "-c", "3", "-i", "0.01", "-W", "2"]).arg(task.to_string());
        let answered = network.client().run(&mut ping);
        let now = carried(network, "a");
        let taken = answered.is_ok() && (0..2).all(|way| now[way] >= before[way] + 3);
        Ok(taken.then_some(()).ok_or_else(|| format!("{before:?}, {now:?}, {answered:?}")))
    })
    .unwrap();
}

#[test]
fn a_service_is_updated_while_datagrams_go_the_fast_way() {
    require!(need::root());
    let mode = lab::find("swarm+accel").unwrap();
    let probed = mode.probe(&Capabilities::new(Privileges::Root).unwrap());
    require!(probed.map_err(|unsupported| format!("{}: {}", mode.name(), unsupported.reason)));
    let mut network = mode.build(&Params::new(1500, Offload::Full)).unwrap();
    let create = ["service", "create", "--detach=false", "--name", SERVICE, "--replicas", "2"];
    let options = ["--network", "overlay", "--endpoint-mode", "dnsrr", "--no-resolve-image"];
    // The image's program ignores the signal to end.
    let rest = ["--stop-grace-period", "1s", "overlane-pause"];
    docker(&network, "a", &[&create[..], &options[..], &rest[..]].concat());
    let first = task(&network, "b");
    is_taken(&network, first);

    let socket = |host: &Host| host.netns().run(|| UdpSocket::bind("0.0.0.0:5407")).unwrap();
    let (from, to) = (socket(network.client()).unwrap(), socket(network.server()).unwrap());
    from.connect((network.address.target.ip(), 5407)).unwrap();
    to.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let stop = AtomicBool::new(false);
    let before = carried(&network, "a");
    let (sent, received) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0u32;
            while !stop.load(Ordering::Relaxed) {
                from.send(&sent.to_ne_bytes()).unwrap();
                sent += 1;
                std::thread::sleep(GAP);
            }
            sent
        });
        let receiver = scope.spawn(|| {
            let mut buffer = [0; 4];
            let mut numbers = Vec::new();
            while to.recv(&mut buffer).is_ok() {
                numbers.push(u32::from_ne_bytes(buffer));
            }
            numbers
        });
        let update = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            docker(&network, "a", &["service", "update", "--detach=false", "--force", SERVICE])
        }));
        stop.store(true, Ordering::Relaxed);
        let ends = (sender.join().unwrap(), receiver.join().unwrap());
        update.unwrap();
        ends
    });
    let after = carried(&network, "a");
    let lost = sent as usize - received.len();
    println!("{sent} sent, {lost} lost, {} by the fast path", after[0] - before[0]);
    assert_eq!(lost, 0, "of {sent}");
    assert!(received.is_sorted_by(|one, next| one < next), "in order and once");
    assert!(after[0] - before[0] > u64::from(sent) / 2, "{before:?} {after:?} of {sent}");
    let second = task(&network, "b");
    assert_ne!(first, second, "the update makes new tasks");
    is_taken(&network, second);
    network.check().unwrap();
}
