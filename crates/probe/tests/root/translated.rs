//! A real fault of the kernel: address translation of VXLAN packets that have an outer checksum,
//! while the inner one is partial.
//!
//! `inet_proto_csum_replace4` (net/core/utils.c) takes the outer checksum for a partial one because
//! the packet is `CHECKSUM_PARTIAL`. The kernel has computed it already (local checksum offload,
//! Documentation/networking/checksum-offloads.rst), so its complement is updated. A NIC or router
//! that finishes the inner checksum sends the packet with a wrong outer one.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use probe::end::Access;
use probe::local::Between;
use probe::message::RATE;
use probe::report::{Direction, Report, Search};
use probe::run::{Extent, Options};
use probe::switch::{Journaled, Switch};
use testbed::{Host, NIC, SECOND_NIC};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
/// Address of the server for the client.
const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
const MTU: u32 = 1500;

/// A client and a server with a router between them that translates the server's address.
pub struct Translated {
    client: Host,
    _router: Host,
    server: Host,
}

impl Translated {
    pub fn new() -> testbed::Result<Translated> {
        let [client, router, server] =
            [Host::new("client")?, Host::new("router")?, Host::new("server")?];
        for (end, device, own, gateway) in [
            (&client, NIC, CLIENT, Ipv4Addr::new(10, 1, 0, 254)),
            (&server, SECOND_NIC, SERVER, Ipv4Addr::new(10, 2, 0, 254)),
        ] {
            end.connect(NIC, &router, device, MTU)?;
            end.address(NIC, own, 24)?;
            router.address(device, gateway, 24)?;
            let route = ["route", "add", "default", "via", &gateway.to_string()];
            end.run(Command::new("ip").args(route))?;
            // A session over TCP would have resolved it.
            end.netlink().add_neighbour(NIC, gateway.into(), testbed::mac("router", device))?;
        }
        router.forward()?;
        router.nft(&format!(
            "table ip t {{
                chain in {{
                    type nat hook prerouting priority -100;
                    ip daddr {PUBLIC} dnat to {SERVER}
                }}
                chain out {{
                    type nat hook postrouting priority 100;
                    ip saddr {SERVER} snat to {PUBLIC}
                }}
            }}"
        ))?;
        Ok(Translated { client, _router: router, server })
    }

    /// Probes from the client, and searches the setting.
    pub fn probe(&self, journal: &Path) -> Report {
        let between = Between {
            namespaces: [self.client.netns(), self.server.netns()],
            client: (IpAddr::V4(CLIENT), IpAddr::V4(PUBLIC)),
            server: (IpAddr::V4(SERVER), IpAddr::V4(CLIENT)),
            access: [Access::open, Access::open],
            rate: RATE,
            settings: None,
        };
        let options = Options { extent: Extent::Quick, rate: 20_000_000, ..Options::default() };
        let mut journaled = Journaled { directory: journal, hops: &[] };
        let switch: &mut (dyn Switch + Send) = &mut journaled;
        between.run(&options, Some(switch), &AtomicBool::new(false)).unwrap()
    }
}

/// Checks that the fault is found with its direction and setting, and nothing else.
///
/// # Errors
/// The difference, as text.
pub fn check(report: &Report) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{why}\n{}", crate::cases::summary(report)));
    if report.bad.is_empty() {
        return wrong("no finding");
    }
    for bad in &report.bad {
        let is_right = bad.way == Direction::Out
            && bad.detail.starts_with("outer checksum wrong")
            && bad.classes.iter().all(|name| name.contains("outer checksum"));
        let Search::Guilty(found) = &bad.search else { return wrong("no setting") };
        if !is_right || found.feature != "tx-checksum-ip-generic" {
            return wrong("another fault");
        }
    }
    Ok(())
}
