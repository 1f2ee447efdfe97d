//! Doctor's faults that segment GSO packets early or make them small: trace shows where.

use lab::Network;
use test_support::require;
use testbed::{NIC, Offload};

use super::seen::{Seen, begins_in, cut_at, is_from};
use super::traffic::{port, stream};
use super::{LIMIT, network};

struct Case {
    check: &'static str,
    name: &'static str,
    /// Host and device where segments begin; `None`: nowhere.
    place: Option<(&'static str, &'static str)>,
    make: fn(&Network),
}

fn features(network: &Network, host: &str, device: &str, off: &[&str]) {
    let wanted: Vec<_> = off.iter().map(|feature| (*feature, false)).collect();
    network.host(host).unwrap().set_features(device, &wanted).unwrap();
}

const CASES: &[Case] = &[
    Case { check: "", name: "nothing", place: None, make: |_| {} },
    Case {
        check: "OV001",
        name: "no segmentation of tunnels at the NIC",
        place: Some(("a", NIC)),
        make: |network| {
            let off = ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"];
            features(network, "a", NIC, &off);
        },
    },
    Case {
        check: "OV002",
        name: "no segmentation with outer checksums",
        place: Some(("a", NIC)),
        make: |network| features(network, "a", NIC, &["tx-udp_tnl-csum-segmentation"]),
    },
    Case {
        check: "OV006",
        name: "no segmentation at the tenant's device",
        place: Some(("tenant-a", "eth0")),
        make: |network| features(network, "tenant-a", "eth0", &["tx-tcp-segmentation"]),
    },
    Case {
        check: "OV010",
        name: "no TCP segmentation at the NIC",
        place: Some(("a", NIC)),
        make: |network| features(network, "a", NIC, &["tx-tcp-segmentation"]),
    },
    Case {
        check: "OV011",
        name: "no checksums at the tenant's device",
        place: Some(("tenant-a", "eth0")),
        make: |network| features(network, "tenant-a", "eth0", &["tx-checksum-ip-generic"]),
    },
];

#[test]
fn packets_are_segmented_where_trace_reports_it() {
    require!(network("vxlan", Offload::Full));
    let (mut table, mut problems) = (Vec::new(), Vec::new());
    for case in CASES {
        let network = require!(network("vxlan", Offload::Full));
        (case.make)(&network);
        let place = case.place.map(|(host, device)| (host.to_owned(), device.to_owned()));
        let wanted: Vec<(String, String)> = place.into_iter().collect();
        let found = testbed::poll(case.name, LIMIT, || {
            let port = port();
            let mut seen = Seen::of_port(&network, port);
            stream(&network, port);
            seen.rest();
            let of_stream = seen.packets.iter().filter(|packet| {
                begins_in(packet, "tenant-a")
                    && is_from(packet, "tcp", port)
                    && packet.steps[0].gso_packets.is_some()
            });
            let (mut cuts, mut largest) = (Vec::new(), 0);
            for packet in of_stream {
                cuts.extend(cut_at(packet));
                largest = largest.max(packet.steps[0].gso_packets.unwrap_or(0));
            }
            cuts.sort();
            cuts.dedup();
            let is_so = largest > 1 && cuts == wanted;
            let problem = || format!("cut at {cuts:?}, largest {largest}\n{}", seen.text());
            Ok(if is_so { Ok(largest) } else { Err(problem()) })
        });
        let (is_reported, largest) = match found {
            Ok(largest) => ("yes", largest),
            Err(error) => {
                problems.push(format!("{}: {error}", case.name));
                ("NO", 0)
            }
        };
        let place =
            case.place.map_or("nowhere".to_owned(), |(host, device)| format!("{host} {device}"));
        table.push(format!(
            "{:<40} {:<6} {place:<14} {largest:>7}  {is_reported}",
            case.name, case.check
        ));
    }
    println!("{:<40} {:<6} {:<14} largest  named", "fault", "check", "cut at");
    println!("{}", table.join("\n"));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
