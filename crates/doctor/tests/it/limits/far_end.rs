//! OV063: answers of a remote end (`--peer`), compared with the tunnel here.

use std::net::IpAddr;

use doctor::host::FarEnd;
use doctor::{Severity, diagnose};
use netstate::Interface;
use netstate::interface::Vxlan;

use super::saved::{link, saved};

const ADDRESS: &str = "10.0.0.2";

/// Severity and last evidence of the finding, if the other end has a device like the one here with
/// one change; then whether the answer could be used.
fn answered(address: &str, change: impl Fn(&mut Interface)) -> (Vec<(Severity, String)>, bool) {
    let mut host = saved("vxlan");
    let mut there = link(&mut host, "a", "vxlan0").clone();
    there.name = "vxlan9".into();
    there.vxlan.as_mut().unwrap().local = Some(ADDRESS.parse().unwrap());
    change(&mut there);
    let address: IpAddr = address.parse().unwrap();
    host.far_ends = vec![FarEnd { address, tunnels: vec![there] }];
    let diagnosis = diagnose(&host);
    let used = diagnosis.skipped.iter().all(|skipped| skipped.code != "OV063");
    let findings = diagnosis.findings.into_iter().filter(|finding| finding.code == "OV063");
    let found = findings.map(|finding| {
        let last = finding.evidence.last().unwrap();
        assert_eq!(last.source, format!("{address}, asked by --peer"));
        (finding.severity, last.what.clone())
    });
    (found.collect(), used)
}

fn vxlan(change: fn(&mut Vxlan)) -> impl Fn(&mut Interface) {
    move |link| change(link.vxlan.as_mut().unwrap())
}

#[test]
fn is_compared_with_the_tunnel() {
    let one = |severity, what: &str| (vec![(severity, what.to_owned())], true);
    let none = (vec![], true);
    assert_eq!(answered(ADDRESS, |_| ()), none);
    assert_eq!(answered(ADDRESS, vxlan(|v| v.vni = 43)), one(Severity::Error, "VNIs there: 43"));
    assert_eq!(
        answered(ADDRESS, |link| link.vxlan = None),
        one(Severity::Error, "there is no VXLAN device")
    );
    assert_eq!(
        answered(ADDRESS, vxlan(|v| v.port = 8472)),
        one(Severity::Error, "port of vxlan9 there: 8472")
    );
    assert_eq!(
        answered(ADDRESS, |link| link.mtu -= 1),
        one(Severity::Warn, "MTU of vxlan9 there: 1449")
    );
    // A larger MTU accepts all packets.
    assert_eq!(answered(ADDRESS, |link| link.mtu += 1), none);
    assert_eq!(
        answered(ADDRESS, vxlan(|v| v.checksum = false)),
        one(Severity::Info, "outer checksums here: sent; by vxlan9 there: not sent")
    );
    // The remote end uses IPv4.
    assert_eq!(answered(ADDRESS, vxlan(|v| v.checksum6 = !v.checksum6)), none);
    // Accepts any VNI, on this port or on another.
    assert_eq!(answered(ADDRESS, vxlan(|v| (v.external, v.vni) = (true, 0))), none);
    assert_eq!(
        answered(ADDRESS, vxlan(|v| (v.external, v.vni, v.port) = (true, 0, 8472))),
        one(Severity::Error, "VNIs there: 0")
    );
}

#[test]
fn may_be_asked_at_another_address_than_its_tunnels() {
    let (other, vni) = ("192.0.2.9", vxlan(|v| v.vni = 43));
    assert_eq!(answered(other, &vni).0.len(), 1);
    // Neither address is a remote of a tunnel here.
    let strange = vxlan(|v| (v.vni, v.local) = (43, Some("192.0.2.9".parse().unwrap())));
    assert_eq!(answered(other, strange), (vec![], false));
}
