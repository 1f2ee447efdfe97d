//! IPv6 addresses, while the kernel has many others to process (root).

use std::net::{IpAddr, Ipv6Addr};

use testbed::Host;

/// Addresses ahead of this test's in the kernel's single queue.
const MANY: u16 = 500;

fn address(network: u16, last: u16) -> IpAddr {
    Ipv6Addr::new(network, 0, 0, 0, 0, 0, 0, last).into()
}

fn flap(host: &Host, device: &str) {
    host.netlink().set_down(device).unwrap();
    host.netlink().set_up(device).unwrap();
}

#[test]
fn ipv6_addresses_are_the_hosts_own_once_they_are_given_or_up_again() {
    let [host, busy, others] = ["host", "busy", "others"].map(|n| Host::with_ipv6(n).unwrap());
    for (host, device) in [(&host, "host0"), (&busy, "busy0")] {
        host.connect("eth0", &others, device, 1500).unwrap();
        host.sysctl("net/ipv6/conf/eth0/keep_addr_on_down", "1").unwrap();
    }
    for last in 1..=MANY {
        busy.netlink().add_address("eth0", address(0xfd01, last), 64).unwrap();
    }
    let link = host.netlink().link("eth0").unwrap().index;
    let own = |address| host.netlink().is_own(link, address).unwrap();
    for last in 1..=10 {
        flap(&busy, "eth0");
        assert!(!own(address(0xfd02, last)));
        host.address("eth0", address(0xfd02, last), 64).unwrap();
        assert!(own(address(0xfd02, last)), "{last}");

        flap(&busy, "eth0");
        flap(&host, "eth0");
        host.settle().unwrap();
        assert!((1..=last).all(|last| own(address(0xfd02, last))), "{last}");
    }
}
