//! A device between the ends whose setting is the cause: a router on the client's machine.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use probe::end::Access;
use probe::exchange::Trouble;
use probe::local::Between;
use probe::report::{End, Report, Search, Setting};
use probe::run::{Extent, Options};
use probe::switch::{Hop, Journaled, Switch};
use settings::journal::Journal;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;
use test_support::{need, require};
use testbed::{Host, NIC};

use crate::bed::{Bed, DEVICE, Fault, Mangled};
use crate::cases::summary;

const TENANT: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// The router's device to the tenant.
const INSIDE: &str = "t0";

/// A tenant behind the bed's client, which routes.
struct Routed {
    bed: Bed,
    tenant: Host,
}

impl Routed {
    fn new() -> Routed {
        let bed = Bed::new(false);
        let [router, server] = bed.namespaces();
        let tenant = Host::new("tenant").unwrap();
        let host = Host::found("router", router.try_clone().unwrap()).unwrap();
        tenant.connect(NIC, &host, INSIDE, 1500).unwrap();
        tenant.address(NIC, TENANT, 24).unwrap();
        host.address(INSIDE, GATEWAY, 24).unwrap();
        host.forward().unwrap();
        let mac = testbed::mac("router", INSIDE);
        tenant.netlink().add_neighbour(NIC, GATEWAY.into(), mac).unwrap();
        let route = |netns: &NetNs, words: &str| {
            let add = || Command::new("ip").args(words.split(' ')).status().unwrap();
            assert!(netns.run(add).unwrap().success(), "{words}");
        };
        route(tenant.netns(), "route add default via 10.8.0.1");
        route(server, "route add 10.8.0.0/24 via 10.9.0.1");
        Routed { bed, tenant }
    }

    fn router(&self) -> &NetNs {
        self.bed.namespaces()[0]
    }

    /// Hops of the router: the device to the tenant, and the one whose wire damages packets.
    fn hops(&self) -> Vec<Hop> {
        let of = |device: &str| {
            let netns = self.router().try_clone().unwrap();
            let path = format!("/proc/self/fd/{}", netns.as_fd().as_raw_fd());
            Hop::within(netns, &path, "router", device).unwrap()
        };
        vec![of(INSIDE), of(DEVICE)]
    }

    fn probe(&self, journal: &Path, hops: &[Hop]) -> Result<Report, Trouble> {
        let between = Between {
            namespaces: [self.tenant.netns(), self.bed.namespaces()[1]],
            client: (IpAddr::V4(TENANT), IpAddr::V4(SERVER)),
            server: (IpAddr::V4(SERVER), IpAddr::V4(TENANT)),
            access: [Access::open, Access::open],
            rate: 20_000_000,
            settings: None,
        };
        let hops_asked = hops.iter().map(|hop| hop.facts().clone()).collect();
        let options = Options {
            extent: Extent::Quick,
            rate: 20_000_000,
            hops: hops_asked,
            ..Options::default()
        };
        let mut journaled = Journaled { directory: journal, hops };
        let switch: &mut (dyn Switch + Send) = &mut journaled;
        between.run(&options, Some(switch), &AtomicBool::new(false))
    }
}

fn guilty(report: &Report) -> Setting {
    let [bad] = &report.bad[..] else { panic!("{}", summary(report)) };
    let Search::Guilty(setting) = &bad.search else { panic!("{}", summary(report)) };
    setting.clone()
}

#[test]
fn the_setting_of_a_hop_is_the_cause_if_the_hop_is_named() {
    require!(need::root(), need::device("vxlan"), need::tool("ip"));
    let routed = Routed::new();
    let journal = tempfile::tempdir().unwrap();
    routed.bed.mangle(Mangled { fault: Fault::Tso4, out: true, back: false });
    let feature = "tx-tcp-segmentation";
    let found = guilty(&routed.probe(journal.path(), &routed.hops()).unwrap());
    let device = DEVICE.to_owned();
    let wanted = Setting {
        end: End::Hop,
        netns: Some("router".to_owned()),
        device,
        feature: feature.to_owned(),
    };
    assert_eq!(found, wanted);
    // Without the hop, only the tenant's own device can avoid the fault.
    let found = guilty(&routed.probe(journal.path(), &[]).unwrap());
    assert_eq!((found.end, found.feature.as_str()), (End::Here, feature));
    // Everything has been restored, in both namespaces.
    assert!(Journal::open(journal.path()).unwrap().entries().unwrap().is_empty());
    for (netns, device) in
        [(&**routed.tenant.netns(), NIC), (routed.router(), INSIDE), (routed.router(), DEVICE)]
    {
        let read = || Ethtool::open().unwrap().features(device).unwrap();
        assert!(netns.run(read).unwrap()[feature].active, "{device}");
    }
}

#[test]
fn a_hop_is_another_device_than_the_end_and_exists() {
    require!(need::root(), need::tool("ip"));
    let routed = Routed::new();
    let journal = tempfile::tempdir().unwrap();
    let own = routed.tenant.netns().run(|| Hop::here(NIC).unwrap()).unwrap();
    let error = routed.probe(journal.path(), &[own]).unwrap_err().to_string();
    assert!(error.contains("it is the device of the path"), "{error}");
    let netns = routed.router().try_clone().unwrap();
    let error = Hop::within(netns, "/proc/self/ns/net", "router", "eth7").unwrap_err();
    assert!(error.contains("eth7"), "{error}");
}
