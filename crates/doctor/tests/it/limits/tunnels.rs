//! Segmentation for tunnels, and destinations of their entries.

use std::net::IpAddr;

use doctor::host::{Feature, Host};
use netstate::MacAddr;
use netstate::entry::{FdbEntry, Knowledge, Neighbour};

use super::saved::{judge, link, namespace, read, saved, vxlan};
use super::{elsewhere, feature};

const PLAIN: &str = "tx-udp_tnl-segmentation";
const WITH_CHECKSUM: &str = "tx-udp_tnl-csum-segmentation";

/// The evidence names the feature of the tunnels' own NIC, not another NIC's.
#[test]
fn tunnel_segmentation_is_that_of_the_tunnels_over_the_nic() {
    let evidence = |change: fn(&mut Host)| {
        let mut host = saved("OV001-vxlan");
        change(&mut host);
        let mut findings = doctor::diagnose(&host).findings.into_iter();
        let first = findings.find(|finding| finding.code == "OV001").unwrap();
        first.evidence.into_iter().map(|evidence| evidence.what).collect::<Vec<_>>()
    };
    let with = ["tx-udp_tnl-csum-segmentation: off", "vxlan0 sends outer checksums"];
    let without = ["tx-udp_tnl-segmentation: off", "vxlan0 sends no outer checksums"];
    assert_eq!(evidence(|_| ()), with);
    assert_eq!(evidence(|h| vxlan(h, "b").checksum = false), with);
    assert_eq!(evidence(|h| vxlan(h, "a").checksum = false), without);
    assert_eq!(evidence(|h| vxlan(h, "a").external = true), without);
}

#[test]
fn ends_of_a_tunnel_have_one_vni_and_one_port() {
    judge(
        "OV018-vxlan",
        "OV018",
        &[
            ("as saved", |_| (), &["a/vxlan0 0.50"]),
            ("another VNI", |h| vxlan(h, "b").vni += 1, &[]),
            ("another port", |h| vxlan(h, "b").port += 1, &[]),
            ("one MTU", |h| link(h, "b", "vxlan0").mtu = link(h, "a", "vxlan0").mtu, &[]),
        ],
    );
}

#[test]
fn connections_of_a_tunnel_are_followed_for_nat_only() {
    let found: &[&str] = &["a/UDP port 4789 0.05"];
    judge(
        "OV030-vxlan",
        "OV030",
        &[
            ("as saved", |_| (), found),
            ("no NAT", |h| read(&mut namespace(h, "a").chains).clear(), &[]),
            ("no entry", |h| read(&mut namespace(h, "a").conntrack).after.count = 0, &[]),
            ("one entry", |h| read(&mut namespace(h, "a").conntrack).after.count = 1, found),
        ],
    );
}

#[test]
fn tunnel_segmentation_is_asked_for_by_what_the_tunnel_sends() {
    judge(
        "OV001-vxlan",
        "OV001",
        &[
            ("as saved", |_| (), &["a/nic0 0.25"]),
            ("with checksums", |h| feature(h, "a", "nic0", WITH_CHECKSUM, Feature::On), &[]),
            (
                "each packet tells whether it has a checksum, and those with one are cut",
                |h| {
                    vxlan(h, "a").external = true;
                    feature(h, "a", "nic0", WITH_CHECKSUM, Feature::On);
                },
                &["a/nic0 0.25"],
            ),
            ("it is on", |h| feature(h, "a", "nic0", PLAIN, Feature::On), &[]),
        ],
    );
    judge(
        "OV002-vxlan",
        "OV002",
        &[
            ("as saved", |_| (), &["a/nic0 0.25"]),
            ("no checksums are sent", |h| vxlan(h, "a").checksum = false, &[]),
            ("IPv6's count for nothing", |h| vxlan(h, "a").checksum6 = false, &["a/nic0 0.25"]),
            (
                "a NIC is named once, whatever number of remotes is behind it",
                |h| {
                    let ways = &mut namespace(h, "a").tunnels[0].ways;
                    ways.push((elsewhere(), ways[0].1.clone()));
                },
                &["a/nic0 0.25"],
            ),
            (
                "nothing that is tunnelled is cut",
                |h| feature(h, "a", "nic0", PLAIN, Feature::Off),
                &[],
            ),
        ],
    );
}

/// OV035 to OV037: forwarding entries, routes and addresses of a tunnel's remote ends.
#[test]
fn entries_of_a_tunnel_lead_to_its_remotes() {
    fn entry(host: &mut Host, mac: Option<MacAddr>, remote: Option<IpAddr>) {
        let link = link(host, "a", "vxlan0").index;
        let (bridge, port, vni, fixed) = (None, None, None, true);
        let entry = FdbEntry { link, mac, bridge, remote, port, vni, fixed, external: false };
        read(&mut namespace(host, "a").fdb).push(entry);
    }
    /// The neighbour whose entry is missing.
    fn neighbour(host: &mut Host) -> &mut Neighbour {
        let link = link(host, "a", "vxlan0").index;
        let known = read(&mut namespace(host, "a").neighbours).iter_mut();
        known.filter(|known| known.link == link).find(|known| known.mac.is_some()).unwrap()
    }
    let found: &[&str] = &["a/vxlan0 1.00"];
    judge(
        "OV035-vxlan-routed",
        "OV035",
        &[
            ("as saved", |_| (), found),
            (
                "an entry without a remote leads nowhere",
                |h| {
                    let mac = neighbour(h).mac;
                    entry(h, mac, None);
                },
                found,
            ),
            (
                "the entry",
                |h| {
                    let mac = neighbour(h).mac;
                    entry(h, mac, Some(elsewhere()));
                },
                &[],
            ),
            (
                "an entry of another address",
                |h| {
                    entry(h, Some(MacAddr([2, 0, 0, 0, 9, 9])), Some(elsewhere()));
                },
                found,
            ),
            ("a default entry", |h| entry(h, Some(MacAddr::ZERO), Some(elsewhere())), &[]),
            ("a default remote", |h| vxlan(h, "a").remote = Some(elsewhere()), &[]),
            ("external: each packet has its remote", |h| vxlan(h, "a").external = true, &[]),
            ("it was learnt", |h| neighbour(h).knowledge = Knowledge::Stale, &[]),
            ("it is elsewhere", |h| neighbour(h).link = 1, &[]),
            (
                "a group has no single place",
                |h| {
                    neighbour(h).mac = Some(MacAddr([1, 0, 0x5e, 0, 0, 1]));
                },
                &[],
            ),
        ],
    );
    fn failed(host: &mut Host, name: &str, address: &str, knowledge: Knowledge) {
        let link = link(host, "a", name).index;
        let known = Neighbour {
            link,
            address: address.parse().unwrap(),
            mac: None,
            knowledge,
            external: false,
            noarp: false,
        };
        let all = read(&mut namespace(host, "a").neighbours);
        all.retain(|other| (other.link, other.address) != (known.link, known.address));
        all.push(known);
    }
    judge(
        "vxlan",
        "OV036",
        &[
            ("it does not answer", |h| failed(h, "nic0", "10.0.0.2", Knowledge::Failed), found),
            ("it does", |h| failed(h, "nic0", "10.0.0.2", Knowledge::Usable), &[]),
            ("on another device", |h| failed(h, "br0", "10.0.0.2", Knowledge::Failed), &[]),
            ("another", |h| failed(h, "nic0", "10.0.0.99", Knowledge::Failed), &[]),
        ],
    );
    judge(
        "OV037-vxlan",
        "OV037",
        &[
            ("as saved", |_| (), &["a/vxlan0 0.50"]),
            ("an address of the host", |h| vxlan(h, "a").local = None, &["a/vxlan0 0.50"]),
            (
                "only the tunnel's own source",
                |h| {
                    let own: IpAddr = "10.0.0.1".parse().unwrap();
                    read(&mut namespace(h, "a").addresses).retain(|known| known.address != own);
                    vxlan(h, "a").local = Some(own);
                },
                &["a/vxlan0 0.50"],
            ),
        ],
    );
    judge(
        "OV053-vxlan",
        "OV053",
        &[
            ("as saved", |_| (), &["a/vxlan0 0.05", "b/vxlan0 0.05"]),
            ("IANA's", |h| vxlan(h, "a").port = 4789, &["b/vxlan0 0.05"]),
            ("no hardware below", |h| link(h, "a", "nic0").bus = None, &["b/vxlan0 0.05"]),
        ],
    );
}
