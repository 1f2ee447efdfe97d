//! Settings that are varied, on a wire of our own and on the machine (root).

use std::sync::Arc;

use testbed::{Host, NIC, Offload, Setting, Wire};

fn one(text: &str) -> Setting {
    Setting::parse_list(text).unwrap().remove(0)
}

fn sysctl(host: &Host, path: &str) -> String {
    let path = format!("/proc/sys/{path}");
    host.netns().run(|| std::fs::read_to_string(path)).unwrap().unwrap().trim().to_owned()
}

fn sysfs(host: &Host, attribute: &str) -> String {
    let sysfs = sys::sysfs::Sysfs::of(host.netns()).unwrap();
    sysfs.read(&format!("class/net/{NIC}/{attribute}")).unwrap()
}

#[test]
fn settings_go_on_a_testbed_and_back() {
    let (a, b) = (Host::new("a").unwrap(), Host::new("b").unwrap());
    Wire { mtu: 1500, offload: Offload::Full }.join(&a, &b).unwrap();
    let hosts = [Arc::new(a), Arc::new(b)];
    let a = &hosts[0];

    let before = sysctl(a, "net/ipv4/tcp_ecn");
    let (length, mask) = (sysfs(a, "tx_queue_len"), sysfs(a, "queues/rx-0/rps_cpus"));
    let applied = one("sysctl:net.ipv4.tcp_ecn=1+txqueuelen=77+rps=2").apply(&hosts).unwrap();
    for host in &hosts {
        assert_eq!(sysctl(host, "net/ipv4/tcp_ecn"), "1");
        assert_eq!(sysfs(host, "tx_queue_len"), "77");
        assert_eq!(sysfs(host, "queues/rx-0/rps_cpus"), "3");
    }
    applied.restore().unwrap();
    for host in &hosts {
        assert_eq!(sysctl(host, "net/ipv4/tcp_ecn"), before);
        assert_eq!(sysfs(host, "tx_queue_len"), length);
        assert_eq!(sysfs(host, "queues/rx-0/rps_cpus"), mask);
    }

    // What a device does not have is an error, and what went before it is back.
    for impossible in ["ring=4096", "queues=999"] {
        let joined = format!("txqueuelen=5+{impossible}");
        let error = one(&joined).apply(&hosts).unwrap_err().to_string();
        assert!(error.contains(NIC), "{error}");
        assert_eq!(sysfs(a, "tx_queue_len"), length);
    }
    let error = one("sysctl:net.no.such_key=1").apply(&hosts).unwrap_err().to_string();
    assert!(error.contains("net/no/such_key"), "{error}");
}

#[test]
fn a_setting_of_the_machine_comes_back() {
    const BUDGET: &str = "/proc/sys/net/core/netdev_budget";
    let host = Arc::new(Host::new("a").unwrap());
    let before = std::fs::read_to_string(BUDGET).unwrap();
    let applied = one("sysctl:net.core.netdev_budget=301").apply(&[host]).unwrap();
    assert_eq!(std::fs::read_to_string(BUDGET).unwrap().trim(), "301");
    drop(applied);
    assert_eq!(std::fs::read_to_string(BUDGET).unwrap(), before);
}
