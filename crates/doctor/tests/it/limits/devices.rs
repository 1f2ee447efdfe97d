//! Bridges, their ports, tenants, TAPs.

use doctor::host::{Feature, Host};
use netstate::{Interface, MacAddr};

use super::saved::{device, judge, link, namespace, read};
use super::{chain, feature};

#[test]
fn segmentation_of_a_tenant_is_that_of_its_end_of_the_pair() {
    const TSO: &str = "tx-tcp-segmentation";
    judge(
        "OV006-vxlan",
        "OV006",
        &[
            ("as saved", |_| (), &["tenant-a/eth0 0.50"]),
            ("it is down", |h| link(h, "tenant-a", "eth0").up = false, &[]),
            ("it is a port itself", |h| link(h, "tenant-a", "eth0").master = Some(9), &[]),
            ("its peer is no port", |h| link(h, "a", "veth0").master = None, &[]),
            (
                "a NIC of the underlay is no tenant's, though its peer is a port",
                |h| {
                    let bridge = link(h, "b", "br0").index;
                    link(h, "b", "nic0").master = Some(bridge);
                    feature(h, "a", "nic0", TSO, Feature::Off);
                },
                &["tenant-a/eth0 0.50"],
            ),
        ],
    );
}

#[test]
fn super_packets_are_limited_by_bytes_and_by_segments() {
    fn segments(host: &mut Host, most: u32, tso: Option<u32>) {
        let link = link(host, "tenant-a", "eth0");
        (link.gso_max_size, link.gso_ipv4_max_size) = (Some(65_536), None);
        (link.gso_max_segs, link.tso_max_size) = (Some(most), tso);
    }
    fn bytes(host: &mut Host, now: u32, tso: Option<u32>) {
        let link = link(host, "tenant-a", "eth0");
        (link.gso_max_size, link.gso_ipv4_max_size) = (Some(now), None);
        link.tso_max_size = tso;
    }
    judge(
        "vxlan",
        "OV007",
        &[
            ("43 segments", |h| segments(h, 43, Some(65_536)), &["tenant-a/eth0 0.20"]),
            ("42 segments", |h| segments(h, 42, Some(65_536)), &["tenant-a/eth0 0.20"]),
            ("44 segments: 64 KiB of MSS 1460", |h| segments(h, 44, Some(65_536)), &[]),
            ("the hardware's limit is not known", |h| segments(h, 43, None), &[]),
            ("half of 64 KiB", |h| bytes(h, 32_768, None), &["tenant-a/eth0 0.15"]),
            ("a quarter of 64 KiB", |h| bytes(h, 16_384, None), &["tenant-a/eth0 0.22"]),
            (
                "half of what the hardware takes",
                |h| bytes(h, 8192, Some(16_384)),
                &["tenant-a/eth0 0.15"],
            ),
            ("all that the hardware takes", |h| bytes(h, 16_384, Some(16_384)), &[]),
            ("64 KiB of a hardware that takes more", |h| bytes(h, 65_536, Some(524_280)), &[]),
        ],
    );
}

/// OV039: ports do not send from their own address, and group addresses belong to no device.
#[test]
fn an_address_is_shared_only_by_devices_that_send() {
    fn share(host: &mut Host, mac: MacAddr, name: &str) {
        link(host, "tenant-b", "eth0").mac = Some(mac);
        let (label, name) = name.split_once('/').unwrap();
        link(host, label, name).mac = Some(mac);
    }
    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 7, 7]);
    const GROUP: MacAddr = MacAddr([3, 0, 0, 0, 7, 7]);
    judge(
        "bridge",
        "OV039",
        &[
            ("two tenants", |h| share(h, OWN, "tenant-a/eth0"), &["tenant-a/eth0 0.50"]),
            ("a tenant and a port", |h| share(h, OWN, "a/veth0"), &[]),
            ("a group", |h| share(h, GROUP, "tenant-a/eth0"), &[]),
            (
                "one is down",
                |h| {
                    share(h, OWN, "tenant-a/eth0");
                    link(h, "tenant-b", "eth0").up = false;
                },
                &[],
            ),
        ],
    );
}

/// OV043, OV048 and OV051.
#[test]
fn bridges_and_what_is_in_them() {
    judge(
        "OV043-vxlan",
        "OV043",
        &[
            ("as saved", |_| (), &["a/bridge-nf-call-iptables 0.10"]),
            ("nothing is bridged with a single port", |h| link(h, "a", "veth0").master = None, &[]),
            (
                "somebody filters",
                |h| read(&mut namespace(h, "a").chains).push(chain("ip", "filter")),
                &[],
            ),
            (
                "a bridge's own rules see no IP",
                |h| {
                    read(&mut namespace(h, "a").chains).push(chain("bridge", "filter"));
                },
                &["a/bridge-nf-call-iptables 0.10"],
            ),
        ],
    );
    fn down(host: &mut Host, name: &str, up: bool, carrier: bool) {
        let link = link(host, "a", name);
        (link.up, link.carrier) = (up, carrier);
    }
    judge(
        "vxlan",
        "OV051",
        &[
            ("a bridge", |h| down(h, "br0", false, false), &["a/br0 1.00"]),
            ("a bridge whose ports have no carrier", |h| down(h, "br0", true, false), &[]),
            (
                "a bridge without ports",
                |h| {
                    down(h, "br0", false, false);
                    for name in ["veth0", "vxlan0"] {
                        link(h, "a", name).master = None;
                    }
                },
                &[],
            ),
            ("a port", |h| down(h, "veth0", false, false), &["a/veth0 1.00"]),
            ("a port without carrier", |h| down(h, "veth0", true, false), &["a/veth0 1.00"]),
            ("a NIC that carries a tunnel", |h| down(h, "nic0", false, false), &["a/nic0 1.00"]),
            ("a tunnel: OV033", |h| down(h, "vxlan0", false, false), &[]),
            (
                "a device of nobody",
                |h| {
                    let spare = Interface {
                        index: 99,
                        name: "spare".into(),
                        ..link(h, "a", "veth0").clone()
                    };
                    let spare = Interface { master: None, up: false, carrier: false, ..spare };
                    read(&mut namespace(h, "a").interfaces).push(spare);
                },
                &[],
            ),
        ],
    );
    fn dropped(host: &mut Host, count: u32) {
        let pair = read(&mut namespace(host, "a").qdiscs);
        pair.after = pair.before.clone();
        let tbf = pair.after.iter_mut().find(|qdisc| qdisc.kind == "tbf").unwrap();
        tbf.drops = tbf.drops.wrapping_add(count);
    }
    judge(
        "OV048-bridge",
        "OV048",
        &[("none", |h| dropped(h, 0), &[]), ("one", |h| dropped(h, 1), &["a/nic0 0.04"])],
    );
}

/// Limits of OV044 and OV045: TAP devices without a holder are no findings.
#[test]
fn taps_are_those_that_somebody_holds() {
    fn tap(host: &mut Host, flags: u32) {
        device(host, "tenant-a", "tap0").tun_flags = Some(flags);
    }
    fn cpus(host: &mut Host, count: usize) {
        read(&mut host.machine.facts).online_cpus = count;
    }
    let one: &[&str] = &["tenant-a/tap0 0.10", "tenant-b/tap0 0.10"];
    judge(
        "OV045-tap",
        "OV045",
        &[
            ("as saved", |_| (), one),
            ("four CPUs", |h| cpus(h, 4), one),
            ("one CPU", |h| cpus(h, 1), &[]),
            ("several queues", |h| tap(h, 0x1102), &["tenant-b/tap0 0.10"]),
            ("a TUN", |h| tap(h, 0x1001), &["tenant-b/tap0 0.10"]),
            (
                "nobody holds it",
                |h| namespace(h, "tenant-a").holders.clear(),
                &["tenant-b/tap0 0.10"],
            ),
            ("it is down", |h| link(h, "tenant-a", "tap0").up = false, &["tenant-b/tap0 0.10"]),
        ],
    );
    judge(
        "OV044-tap",
        "OV044",
        &[
            ("a header", |h| tap(h, 0x5002), &["tenant-b/tap0 0.80"]),
            (
                "Open vSwitch's: OV047",
                |h| {
                    namespace(h, "tenant-a").holders[0].command = "ovs-vswitchd".into();
                },
                &["tenant-b/tap0 0.80"],
            ),
        ],
    );
    fn queue(host: &mut Host, qdisc: &str, length: u32) {
        let link = link(host, "tenant-a", "eth0");
        (link.qdisc, link.tx_queue_len) = (Some(qdisc.into()), length);
    }
    let short: &[&str] = &["tenant-a/eth0 0.20"];
    judge(
        "vxlan",
        "OV052",
        &[
            ("99 packets", |h| queue(h, "pfifo_fast", 99), short),
            ("100 packets", |h| queue(h, "pfifo_fast", 100), &[]),
            ("of each queue", |h| queue(h, "mq", 99), short),
            ("of one that has none", |h| queue(h, "noqueue", 0), &[]),
        ],
    );
}
