//! OV083 to OV085: faults of field cases, and the same state on a healthy host.

use doctor::host::{Host, Pair, Reading};
use doctor::{Severity, diagnose};
use netstate::MacAddr;
use netstate::entry::{Knowledge, Neighbour};
use netstate::interface::Port;

use super::saved::{judge, link, namespace, read, saved, vxlan};

/// Removes forwarding entries of `vxlan0` on host a, and its default remote, and counts drops.
fn forgets(host: &mut Host, is_forgotten: impl Fn(Option<MacAddr>) -> bool) {
    let index = link(host, "a", "vxlan0").index;
    vxlan(host, "a").remote = None;
    vxlan(host, "a").proxy = Some(false);
    let namespace = namespace(host, "a");
    let remove = |remote: Option<_>, mac| remote.is_some() && is_forgotten(mac);
    read(&mut namespace.fdb)
        .retain(|entry| entry.link != index || !remove(entry.remote, entry.mac));
    read(&mut namespace.later).get_mut(&index).unwrap().tx_dropped += 7;
}

fn severities(host: &Host, code: &str) -> Vec<Severity> {
    let findings = diagnose(host).findings.into_iter();
    findings.filter(|finding| finding.code == code).map(|finding| finding.severity).collect()
}

#[test]
fn a_tunnel_without_a_remote_is_an_error_if_another_host_is_known() {
    let all = |_| true;
    let mut host = saved("vxlan");
    forgets(&mut host, all);
    assert_eq!(severities(&host, "OV083"), [Severity::Error], "host b sends here");
    // The only host of an overlay.
    let mut alone = host.clone();
    alone.namespaces.retain(|namespace| namespace.label != "b");
    assert_eq!(severities(&alone, "OV083"), [Severity::Info]);
    let mut seeks = alone.clone();
    let eth0 = link(&mut seeks, "tenant-a", "eth0").index;
    read(&mut namespace(&mut seeks, "tenant-a").neighbours).push(Neighbour {
        link: eth0,
        address: "10.1.0.99".parse().unwrap(),
        mac: None,
        knowledge: Knowledge::Failed,
        external: false,
        noarp: false,
    });
    assert_eq!(severities(&seeks, "OV083"), [Severity::Warn]);
    for change in [
        |host: &mut Host| vxlan(host, "a").proxy = Some(true),
        // A host saved by an earlier version.
        |host: &mut Host| vxlan(host, "a").proxy = None,
        |host: &mut Host| vxlan(host, "a").external = true,
        |host: &mut Host| vxlan(host, "a").remote = Some("239.1.1.1".parse().unwrap()),
        |host: &mut Host| link(host, "a", "vxlan0").master = None,
        |host: &mut Host| {
            let index = link(host, "a", "vxlan0").index;
            read(&mut namespace(host, "a").later).get_mut(&index).unwrap().tx_dropped -= 7;
        },
    ] {
        let mut healthy = host.clone();
        change(&mut healthy);
        assert!(severities(&healthy, "OV083").is_empty());
    }
    // The bridge answers for its neighbours: a control plane without flooding.
    link(&mut host, "a", "vxlan0").port =
        Some(Port { learning: false, neigh_suppress: true, ..Port::default() });
    assert_eq!(severities(&host, "OV083"), [Severity::Info]);
}

#[test]
fn only_a_range_of_one_port_is_one_source_port() {
    judge(
        "vxlan",
        "OV084",
        &[
            ("default", |_| (), &[]),
            (
                "one",
                |host| vxlan(host, "a").source_ports = Some((49152, 49153)),
                &["a/vxlan0 0.40"],
            ),
            ("two", |host| vxlan(host, "a").source_ports = Some((49152, 49154)), &[]),
            // The kernel's default range.
            ("none", |host| vxlan(host, "a").source_ports = Some((49152, 49152)), &[]),
            ("turned", |host| vxlan(host, "a").source_ports = Some((49153, 49152)), &[]),
        ],
    );
}

#[test]
fn a_quota_is_a_warning_if_packets_wait() {
    let stopped = |before: &[u64], after: &[u64]| {
        let mut host = saved("vxlan");
        host.interval_s = 1.0;
        let pair = Pair { before: before.to_vec(), after: after.to_vec() };
        namespace(&mut host, "a").throttled = Reading::Read(pair);
        host
    };
    let of = |host: &Host| severities(host, "OV085");
    // Two levels are throttled at the same time.
    let host = stopped(&[5, 7], &[400_005, 400_007]);
    assert_eq!(of(&host), [Severity::Info]);
    let mut waits = host.clone();
    read(&mut namespace(&mut waits, "a").snmp).after.udp.rcvbuf_errors += 3;
    assert_eq!(of(&waits), [Severity::Warn]);
    // A twentieth of the time, other groups, no group, and no second reading.
    for (before, after) in
        [(&[0][..], &[50_000][..]), (&[0], &[900_000, 900_000]), (&[], &[]), (&[900_000], &[0])]
    {
        assert!(of(&stopped(before, after)).is_empty(), "{before:?} {after:?}");
    }
}
