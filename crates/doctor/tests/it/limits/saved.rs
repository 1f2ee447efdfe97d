//! The library of saved hosts, and changes of a saved host.

use std::path::Path;

use doctor::host::{Device, Namespace, Reading};
use doctor::{Host, diagnose, dump};
use netstate::Interface;
use netstate::interface::Vxlan;

/// Reads the saved host `tests/hosts/NAME.tar.zst`.
pub fn saved(name: &str) -> Host {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
    let path = directory.join(format!("{name}.tar.zst"));
    dump::read(std::fs::File::open(path).unwrap()).unwrap()
}

/// Findings of one check: namespace, object and cost of each.
pub fn judged(host: &Host, code: &str) -> Vec<String> {
    let findings = diagnose(host).findings.into_iter().filter(|finding| finding.code == code);
    findings
        .map(|finding| {
            format!("{}/{} {:.2}", finding.namespace, finding.object, finding.cost.share)
        })
        .collect()
}

/// A change of a host, as text and as code, and the findings of a check after it.
pub type Case = (&'static str, fn(&mut Host), &'static [&'static str]);

/// Judges a saved host by one check, with one change at a time.
pub fn judge(name: &str, code: &str, cases: &[Case]) {
    let as_saved = saved(name);
    for (what, change, wanted) in cases {
        let mut host = as_saved.clone();
        change(&mut host);
        assert_eq!(judged(&host, code), *wanted, "{code}, {name}: {what}");
    }
}

/// The read value, to be changed.
pub fn read<T>(reading: &mut Reading<T>) -> &mut T {
    match reading {
        Reading::Read(value) => value,
        Reading::Unread(reason) => panic!("not read: {reason}"),
    }
}

pub fn namespace<'h>(host: &'h mut Host, label: &str) -> &'h mut Namespace {
    host.namespaces.iter_mut().find(|known| known.label == label).unwrap()
}

/// A link, by its namespace and name.
pub fn link<'h>(host: &'h mut Host, label: &str, name: &str) -> &'h mut Interface {
    let links = read(&mut namespace(host, label).interfaces);
    links.iter_mut().find(|link| link.name == name).unwrap()
}

/// Attributes of the VXLAN device `vxlan0`.
pub fn vxlan<'h>(host: &'h mut Host, label: &str) -> &'h mut Vxlan {
    link(host, label, "vxlan0").vxlan.as_mut().unwrap()
}

/// The device's driver information.
pub fn device<'h>(host: &'h mut Host, label: &str, name: &str) -> &'h mut Device {
    let index = link(host, label, name).index;
    namespace(host, label).devices.get_mut(&index).unwrap()
}
