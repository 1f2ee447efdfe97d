//! Neighbour requests that are answered locally, and therefore not sent to the wire.

use datapath::counters::Resolution;

use super::capture::{Capture, tshark};
use super::*;
use test_support::{need, require};

/// A tenant behind the bridge of the TAP's host.
fn tenant(vtep: &Vtep, name: &str, last: u8) -> Host {
    let tenant = Host::with_ipv6(name).unwrap();
    vtep.tenant.connect(name, &tenant, "eth0", PLAN.mtu()).unwrap();
    vtep.tenant.netlink().set_master(name, "br0").unwrap();
    address(&tenant, "eth0", format!("fd01::{last}").parse().unwrap(), 64);
    address(&tenant, "eth0", [10, 1, 0, last].into(), 24);
    tenant
}

#[test]
fn a_second_question_stays_off_the_wire() {
    require!(need::tun(), need::tools(&["tcpdump", "tshark"]));
    for suppress in [true, false] {
        let [a, b] = hosts(&PLAN);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wire.pcap");
        let capture = Capture::start(&b, &file);
        let mut config = PLAN.config(0, &[1]);
        config.networks[0].neigh_suppress = suppress;
        let vtep = Vtep::new(&PLAN, &a, 0, &config);
        kernel(&PLAN, &b, 1, 0);
        vtep.tenant.bridge("br0", PLAN.mtu(), &["tap0"]).unwrap();
        let tenants = [("first", 11), ("second", 12)].map(|(name, last)| tenant(&vtep, name, last));
        for tenant in &tenants {
            for target in [INNER_V4[1], INNER_V6[1]] {
                ping(tenant, target, 56);
                let mut command = Command::new("ip");
                let known = tenant.run(command.args(["neigh", "show", target])).unwrap();
                let mac = testbed::mac("b", "vxlan0").to_string();
                assert!(known.contains(&mac), "{mac}: {known}");
            }
        }
        // Addresses on its own side are still requested.
        ping(&tenants[1], "10.1.0.11", 56);
        let out = vtep.running.report().networks[0].out;
        for answered in [Resolution::Arp, Resolution::Discovery] {
            assert_eq!(out.resolved(answered) > 0, suppress, "{out:?}");
        }
        // A request for an unknown address goes to the wire.
        let mut command = Command::new("ping");
        tenants[1].run(command.args(["-c", "1", "-W", "1", "10.1.0.99"])).unwrap_err();
        let report = vtep.end();
        assert_eq!(report.networks[0].neighbours[1] > 0, suppress, "{report:?}");
        drop(capture);

        let asks = |filter: String| !tshark(&file, &["-Y", &filter]).is_empty();
        let arp = |target| {
            format!(
                "arp.opcode == 1 && arp.src.proto_ipv4 == 10.1.0.{} && arp.dst.proto_ipv4 == {target}",
                12
            )
        };
        let discovery = |last: u8| {
            format!("icmpv6.type == 135 && ipv6.src == fd01::{last} && ipv6.dst == ff02::1:ff00:2")
        };
        assert_eq!(asks(arp(INNER_V4[1])), !suppress);
        assert_eq!(asks(discovery(12)), !suppress);
        // The capture does see requests that are sent.
        assert!(asks(discovery(11)));
        assert!(asks(arp("10.1.0.99")));
    }
}

#[test]
fn duplicate_address_detection_still_finds_duplicates() {
    require!(need::tun());
    let [a, b] = hosts(&PLAN);
    let mut config = PLAN.config(0, &[1]);
    config.networks[0].neigh_suppress = true;
    let vtep = Vtep::new(&PLAN, &a, 0, &config);
    kernel(&PLAN, &b, 1, 0);
    ping(&vtep.tenant, INNER_V4[1], 56);
    ping(&vtep.tenant, INNER_V6[1], 56);
    // An address that the remote tenant has, and one that it no longer has.
    let claims = |address: &str| {
        vtep.tenant.sysctl("net/ipv6/conf/tap0/accept_dad", "1").unwrap();
        let mut command = Command::new("ip");
        command.args(["addr", "add", &format!("{address}/64"), "dev", "tap0"]);
        vtep.tenant.run(&mut command).unwrap();
        testbed::poll("the verdict", LIMIT, || {
            let mut command = Command::new("ip");
            let shown = vtep.tenant.run(command.args(["-6", "addr", "show", "to", address]))?;
            let tentative = shown.contains("tentative") && !shown.contains("dadfailed");
            Ok(if tentative { Err(shown) } else { Ok(shown.contains("dadfailed")) })
        })
        .unwrap()
    };
    assert!(claims(INNER_V6[1]));
    address(&b, "vxlan0", "fd01::77".parse().unwrap(), 64);
    ping(&vtep.tenant, "fd01::77", 56);
    b.run(Command::new("ip").args(["addr", "del", "fd01::77/64", "dev", "vxlan0"])).unwrap();
    assert!(!claims("fd01::77"));
    let out = vtep.end().networks[0].out;
    assert!(out.resolved(Resolution::Duplicate) >= 2, "{out:?}");
}
