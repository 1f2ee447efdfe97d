//! `overlane probe` between a host and a container of a real Docker Engine, over Docker's own
//! bridge, `docker_gwbridge`.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;

use lab::{Capabilities, Network, Params};
use serde_json::Value;
use test_support::{need, require};
use testbed::{Host, Offload, Privileges};

use super::launch::{Ended, Running};
use super::remote::{inside, overlane, ready};
use super::schema;

/// Docker's bridge on the host, which gives containers of an overlay network a way out.
const BRIDGE: &str = "docker_gwbridge";
/// Changes the first bytes of the payload of datagrams that leave by the bridge for the probe's
/// port.
const DAMAGE: &str = "table netdev damage { chain c { type filter hook egress device \
                      docker_gwbridge priority 0; udp dport 5211 @th,64,16 set 0xdead; }; }";

/// Two Docker Engines with a container each.
fn network() -> Result<Network, String> {
    need::root()?;
    need::tools(&["nsenter", "nft"])?;
    need::device("vxlan")?;
    let mode = lab::find("swarm").unwrap();
    let probed = mode.probe(&Capabilities::new(Privileges::Root).unwrap());
    probed.map_err(|unsupported| format!("swarm: {}", unsupported.reason))?;
    Ok(mode.build(&Params::new(1500, Offload::Full)).unwrap())
}

/// Address of the container on the bridge of its host.
fn address_on_bridge(host: &Host, container: &Host) -> IpAddr {
    let of = |host: &Host, name: &str| {
        let index = host.netlink().link(name).unwrap().index;
        let addresses = host.netlink().addresses().unwrap().into_iter();
        let mut own = addresses.filter(|one| one.link == index && one.address.is_ipv4());
        own.next().map(|one| one.address)
    };
    assert!(of(host, BRIDGE).is_some(), "{BRIDGE} has no address");
    // eth0 is on the overlay network.
    of(container, "eth1").unwrap()
}

#[test]
fn the_path_from_a_host_to_its_container_is_sound_and_damage_on_the_bridge_is_found() {
    let network = require!(network());
    let [host, container] = ["a", "tenant-a"].map(|name| network.host(name).unwrap());
    let peer = address_on_bridge(host, container).to_string();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (token, journal) = (at("token"), at("journal"));
    std::fs::write(&token, "a secret of the tests 7Jx0").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let serve = ["measure", "serve", "--bind", "0.0.0.0", "--token", &token];
    let _server = ready(inside(container, overlane(&serve)));
    let probe = |more: &[&str]| -> Ended {
        let words = ["probe", &peer, "--token", &token, "--journal", &journal, "--json"];
        let words = [&words[..], &["--quick", "--rate", "20000000"], more].concat();
        Running::start(inside(host, overlane(&words))).wait()
    };

    let report = probe(&[]).expect(0).json();
    schema::validate("probe", &report);
    assert_eq!(report["here"]["device"], BRIDGE, "{:#}", report["here"]);
    assert_eq!(report["there"]["device"], "eth1", "{:#}", report["there"]);
    assert_eq!(report["there"]["kind"], "veth", "{:#}", report["there"]);
    for way in ["out", "back"] {
        let classes = report["classes"].as_array().unwrap().iter();
        let intact =
            classes.filter(|one| one["way"] == way && one["verdict"]["verdict"] == "intact");
        assert!(intact.count() > 40, "{way}: {:#}", report["classes"]);
    }

    host.nft(DAMAGE).unwrap();
    let report = probe(&["--yes"]).expect(10).json();
    let bad: &Vec<Value> = report["bad"].as_array().unwrap();
    assert!(!bad.is_empty());
    for one in bad {
        assert_eq!(one["way"], "out", "{one:#}");
        // No offload of the bridge is the cause.
        assert!(one["search"].get("guilty").is_none(), "{one:#}");
        for class in one["classes"].as_array().unwrap() {
            assert!(class.as_str().unwrap().starts_with("UDP/"), "{one:#}");
        }
    }
    assert!(bad.iter().any(|one| one["verdict"] == "corrupted"), "{bad:#?}");
}
