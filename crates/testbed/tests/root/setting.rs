//! Varied settings, on a private wire and on the machine (root).

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

    // An impossible setting is an error, and the settings before it are restored.
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

#[test]
fn another_setting_of_the_machine_is_waited_for() {
    const BUDGET: &str = "/proc/sys/net/core/netdev_budget";
    const WEIGHT: &str = "/proc/sys/net/core/dev_weight";
    let host = Arc::new(Host::new("a").unwrap());
    let (budget, weight) =
        (std::fs::read_to_string(BUDGET).unwrap(), std::fs::read_to_string(WEIGHT).unwrap());
    let first = one("sysctl:net.core.netdev_budget=302").apply(&[Arc::clone(&host)]).unwrap();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| one("sysctl:net.core.dev_weight=65").apply(&[host]));
        // The second run waits while the first setting is in effect.
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_millis(100) {
            assert!(!second.is_finished(), "{:?}", second.join());
            assert_eq!(std::fs::read_to_string(WEIGHT).unwrap(), weight);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        drop(first);
        second.join().unwrap().unwrap().restore().unwrap();
    });
    assert_eq!(std::fs::read_to_string(BUDGET).unwrap(), budget);
    assert_eq!(std::fs::read_to_string(WEIGHT).unwrap(), weight);
}

#[test]
fn profiles_features_and_link_attributes_are_varied() {
    let (a, b) = (Host::new("a").unwrap(), Host::new("b").unwrap());
    Wire { mtu: 1500, offload: Offload::Full }.join(&a, &b).unwrap();
    let hosts = [Arc::new(a), Arc::new(b)];
    let active = |host: &Host| -> Vec<(String, bool)> {
        let features = host.features(NIC).unwrap().into_iter();
        features.map(|(name, feature)| (name, feature.active)).collect()
    };
    let before: Vec<_> = hosts.iter().map(|host| active(host)).collect();
    for (profile, tunnel, plain) in
        [("full", true, true), ("no-tunnel", false, true), ("none", false, false)]
    {
        let held = one(&format!("offload={profile}")).apply(&hosts).unwrap();
        for host in &hosts {
            let features = host.features(NIC).unwrap();
            assert_eq!(features["tx-udp_tnl-segmentation"].active, tunnel, "{profile}");
            assert_eq!(features["tx-tcp-segmentation"].active, plain, "{profile}");
        }
        held.restore().unwrap();
        assert_eq!(hosts.iter().map(|host| active(host)).collect::<Vec<_>>(), before, "{profile}");
    }

    // The syntax of the command line, for one host or for all.
    let held = one("feature:rx-gro=off+gso_max_size=16000").apply(&hosts).unwrap();
    assert!(hosts.iter().all(|host| !host.features(NIC).unwrap()["rx-gro"].active));
    held.restore().unwrap();
    let of_a = Setting::of_host("a", "feature:rx-gro=off").unwrap();
    let held = of_a.apply(&hosts).unwrap();
    let gro = |host: &Host| host.features(NIC).unwrap()["rx-gro"].active;
    assert_eq!((gro(&hosts[0]), gro(&hosts[1])), (false, true));
    drop(held);
    assert_eq!(hosts.iter().map(|host| active(host)).collect::<Vec<_>>(), before);

    for (text, named) in [
        ("feature:no-such=on", "no-such"),
        ("txqueuelen@nic1=5", "nic1"),
        ("queues=999", "the device supports"),
    ] {
        let error = one(text).apply(&hosts).unwrap_err().to_string();
        assert!(error.contains(named), "{text}: {error}");
    }
    let nobody = Setting::of_host("c", "rps=1").unwrap().apply(&hosts).unwrap_err().to_string();
    assert!(nobody.contains("hosts: a, b"), "{nobody}");
    let machine = Setting::of_host("a", "sysctl -w kernel.printk_delay=1").unwrap();
    let machine = machine.apply(&hosts).unwrap_err().to_string();
    assert!(machine.contains("belongs to the machine"), "{machine}");
}

#[test]
fn settings_outside_the_network_are_not_varied() {
    let error = Setting::parse_list("sysctl:kernel.panic=1").unwrap_err().to_string();
    assert!(error.contains("only keys below net"), "{error}");
}
