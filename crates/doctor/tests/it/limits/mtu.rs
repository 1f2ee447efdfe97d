//! Differing MTUs, and remedies.

use doctor::host::Host;
use ruleset::{Clamp, Match};

use super::chain;
use super::saved::{judge, link, namespace, read, vxlan};

#[test]
fn the_mtu_of_an_overlay_is_the_underlays_less_its_headers() {
    fn way(host: &mut Host, mtu: u32) {
        read(&mut namespace(host, "a").tunnels[0].ways[0].1).mtu = Some(mtu);
    }
    let both: &[&str] = &["a/vxlan0 1.00"];
    judge(
        "vxlan",
        "OV070",
        &[
            ("as saved", |_| (), &[]),
            ("a path with a smaller MTU", |h| way(h, 1499), both),
            ("a path with the NIC's own MTU", |h| way(h, 1500), &[]),
            ("an MTU above the NIC's is of no use", |h| way(h, 9000), &[]),
        ],
    );
    judge(
        "vxlan",
        "OV013",
        &[
            ("as saved", |_| (), &[]),
            ("a route with a smaller MTU is another check's", |h| way(h, 1499), &[]),
            ("a route with the NIC's own MTU", |h| way(h, 1500), &[]),
            ("a route's MTU above the NIC's is of no use", |h| way(h, 9000), &[]),
            ("a byte too many", |h| link(h, "a", "vxlan0").mtu = 1451, both),
            (
                "external: each packet has its remote",
                |h| {
                    way(h, 1300);
                    vxlan(h, "a").external = true;
                },
                &[],
            ),
        ],
    );
    judge(
        "OV013-vxlan",
        "OV013",
        &[(
            "a route's larger MTU does not widen a NIC",
            |h| way(h, 9000),
            &["a/vxlan0 1.00", "b/vxlan0 1.00"],
        )],
    );
    fn nic(host: &mut Host, mtu: u32) {
        link(host, "a", "nic0").mtu = mtu;
    }
    judge(
        "vxlan",
        "OV017",
        &[
            ("500 bytes more", |h| nic(h, 2000), &["a/vxlan0 0.15"]),
            ("501 bytes more", |h| nic(h, 2001), &["a/vxlan0 0.15"]),
            ("499 bytes more", |h| nic(h, 1999), &[]),
            (
                "external: each packet has its remote",
                |h| {
                    nic(h, 2000);
                    vxlan(h, "a").external = true;
                },
                &[],
            ),
        ],
    );
}

/// OV019. Host a of `nat` as saved: its NIC has 1400 bytes, its bridge 1500.
#[test]
fn a_clamp_that_fits_silences_nat_between_mtus() {
    fn clamp(
        host: &mut Host,
        family: &str,
        input: Option<&str>,
        output: Option<&str>,
        mss: Option<u16>,
    ) {
        let name = |name: Option<&str>| name.map(|name| Match::Name(name.to_owned()));
        let (family, table, chain) = (family.to_owned(), "mangle".to_owned(), "FORWARD".to_owned());
        let clamp = Clamp { family, table, chain, input: name(input), output: name(output), mss };
        *read(&mut namespace(host, "a").clamps) = vec![clamp];
    }
    let (open, shut): (&[&str], &[&str]) = (&["a/br0 0.30", "b/br0 0.30"], &["b/br0 0.30"]);
    judge(
        "OV019-nat",
        "OV019",
        &[
            ("as saved", |_| (), open),
            ("by the route's MTU", |h| clamp(h, "ip", None, None, None), shut),
            ("1360 and 40 bytes of headers", |h| clamp(h, "ip", None, None, Some(1360)), shut),
            ("less", |h| clamp(h, "ip", None, None, Some(1300)), shut),
            ("a byte too many", |h| clamp(h, "ip", None, None, Some(1361)), open),
            ("of what leaves by it", |h| clamp(h, "inet", None, Some("nic0"), None), shut),
            ("of what enters by it", |h| clamp(h, "inet", Some("nic0"), None, None), shut),
            ("from the bridge to it", |h| clamp(h, "inet", Some("br0"), Some("nic0"), None), shut),
            ("of another device", |h| clamp(h, "inet", None, Some("br0"), None), open),
            ("of IPv6", |h| clamp(h, "ip6", None, None, None), open),
            (
                "a filter translates nothing",
                |h| {
                    *read(&mut namespace(h, "a").chains) = vec![chain("ip", "filter")];
                },
                shut,
            ),
            (
                "nor does a bridge's table",
                |h| {
                    *read(&mut namespace(h, "a").chains) = vec![chain("bridge", "nat")];
                },
                shut,
            ),
            (
                "nothing is forwarded",
                |h| {
                    namespace(h, "a").sysctls.insert("net/ipv4/ip_forward".into(), "0".into());
                },
                shut,
            ),
        ],
    );
}

/// OV019 with the smaller MTU at host a's bridge: the hosts behind it announce their own MSS.
#[test]
fn ends_of_the_smaller_mtu_announce_what_fits() {
    fn small(host: &mut Host) {
        for (label, name, mtu) in [("a", "br0", 1400), ("a", "veth0", 1400), ("a", "nic0", 1500)] {
            link(host, label, name).mtu = mtu;
        }
        link(host, "tenant-a", "eth0").mtu = 1400;
    }
    fn alone(host: &mut Host, kind: &str, mtu: u32) {
        small(host);
        host.namespaces.retain(|known| known.label != "tenant-a");
        let port = link(host, "a", "veth0");
        (port.kind, port.mtu) = (Some(kind.into()), mtu);
    }
    let (found, silent): (&[&str], &[&str]) = (&["a/nic0 0.30", "b/br0 0.30"], &["b/br0 0.30"]);
    judge(
        "OV019-nat",
        "OV019",
        &[
            ("its end has the bridge's MTU", small, silent),
            (
                "its end has a larger one",
                |h| {
                    small(h);
                    link(h, "tenant-a", "eth0").mtu = 1401;
                },
                found,
            ),
            (
                "its end forwards for others",
                |h| {
                    small(h);
                    let key = "net/ipv4/ip_forward".into();
                    namespace(h, "tenant-a").sysctls.insert(key, "1".into());
                },
                found,
            ),
            (
                "an end that was not read has the MTU of its pair",
                |h| alone(h, "veth", 1400),
                silent,
            ),
            ("an end that was not read, of a larger pair", |h| alone(h, "veth", 1401), found),
            ("a VM may have any", |h| alone(h, "tun", 1400), found),
            (
                "nobody is behind a bridge without ports",
                |h| link(h, "a", "veth0").master = None,
                silent,
            ),
        ],
    );
}

/// OV019 and OV064: a device that only carries the tunnel does not lead a sender into it.
#[test]
fn the_underlay_of_a_tunnel_is_no_route_into_it() {
    fn nat(host: &mut Host) {
        read(&mut namespace(host, "a").chains).push(chain("ip", "nat"));
    }
    judge(
        "OV064-vxlan-routed",
        "OV019",
        &[
            ("without NAT", |_| (), &[]),
            ("with NAT", nat, &["a/veth9 0.30"]),
            (
                "only the NIC has more",
                |h| {
                    nat(h);
                    link(h, "a", "veth9").mtu = 1450;
                },
                &[],
            ),
        ],
    );
    judge(
        "OV064-vxlan-routed",
        "OV064",
        &[
            ("as saved", |_| (), &["a/vxlan0 0.20"]),
            ("with NAT it is OV019", nat, &[]),
            ("only the NIC has more", |h| link(h, "a", "veth9").mtu = 1450, &[]),
            ("a byte more", |h| link(h, "a", "veth9").mtu = 1451, &["a/vxlan0 0.20"]),
            (
                "clamped",
                |h| {
                    let (family, table, chain) = ("ip".into(), "mangle".into(), "FORWARD".into());
                    let clamp =
                        Clamp { family, table, chain, input: None, output: None, mss: None };
                    read(&mut namespace(h, "a").clamps).push(clamp);
                },
                &[],
            ),
        ],
    );
}
