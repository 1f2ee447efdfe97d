//! Losses between two hosts, from a recording of `overlane watch --peer`.
//!
//! Flows are counted since the other host first answered, so the last interval has the totals.

use maud::{Markup, html};
use observe::{Addresses, FlowSeen, PeerSeen};

use crate::style::named;
use crate::unit::count;

/// Most flows kept, those with the most losses. The rest is only counted.
const MOST_FLOWS: usize = 64;
const MOST_PLACES: usize = 48;

/// Returns a bounded copy with names that are safe to show.
pub(crate) fn kept(peer: &PeerSeen) -> PeerSeen {
    let surplus = peer.flows.len().saturating_sub(MOST_FLOWS) as u64;
    PeerSeen {
        address: named(&peer.address),
        problem: peer.problem.as_deref().map(named),
        flows: peer.flows.iter().take(MOST_FLOWS).map(flow).collect(),
        other_flows: peer.other_flows.saturating_add(surplus),
        ..peer.clone()
    }
}

fn flow(flow: &FlowSeen) -> FlowSeen {
    let places =
        |places: &[String]| places.iter().take(MOST_PLACES).map(|place| named(place)).collect();
    FlowSeen {
        flow: Addresses {
            source: named(&flow.flow.source),
            destination: named(&flow.flow.destination),
            protocol: named(&flow.flow.protocol),
            ..flow.flow
        },
        left_by: places(&flow.left_by),
        came_by: places(&flow.came_by),
        there: places(&flow.there),
        ..flow.clone()
    }
}

/// Renders the section of the page.
pub(crate) fn section(peer: &PeerSeen) -> Markup {
    html! {
        section {
            h2 { "Between the hosts" }
            p { (peer.head()) }
            @if peer.flows.is_empty() { p { "No packet of these flows passed between the hosts." } }
            @else { div.scroll { table {
                thead { tr {
                    th { "flow" } th { "packets" } th { "left by" } th { "came by" } th { "there" }
                } }
                tbody { @for flow in &peer.flows { tr {
                    td { (flow.name()) }
                    td { (flow.fate()) }
                    td { (flow.left_by.join(", ")) }
                    td { (flow.came_by.join(", ")) }
                    td { (flow.there.join(" > ")) }
                } } }
            } } }
            @if peer.other_flows > 0 {
                p { (count(usize::try_from(peer.other_flows).unwrap_or(usize::MAX), "flow")) " more." }
            }
            @if peer.uncounted > 0 {
                p { (peer.uncounted) " packets belong to flows that a host had no room for." }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use observe::Direction;

    use super::*;

    #[test]
    fn foreign_text_is_bounded_and_shown() {
        let escape = "\u{1b}[2J".repeat(1000);
        let flow = FlowSeen {
            flow: Addresses {
                source: "10.1.0.11".to_owned(),
                destination: escape.clone(),
                protocol: "udp".to_owned(),
                source_port: None,
                destination_port: Some(53),
            },
            encapsulation: None,
            vni: None,
            direction: Direction::Out,
            left: 100,
            left_bytes: 10_000,
            came: 97,
            came_bytes: 9_700,
            lost: Some(3),
            in_flight: 0,
            left_by: vec![escape.clone(); 1000],
            came_by: vec!["b nic0".to_owned()],
            there: vec![escape.clone(); 1000],
        };
        let peer = kept(&PeerSeen {
            address: escape,
            problem: None,
            clock: None,
            compared_s: 1.0,
            age_s: 0.0,
            flows: vec![flow; MOST_FLOWS + 5],
            other_flows: 2,
            uncounted: 7,
        });
        assert_eq!((peer.flows.len(), peer.other_flows), (MOST_FLOWS, 7));
        let page = section(&peer).into_string();
        assert!(!page.contains('\u{1b}') && page.len() < 4_000_000, "{}", page.len());
        for shown in
            ["3 lost between the hosts (3.00%)", "b nic0", "7 flows more", "7 packets belong"]
        {
            assert!(page.contains(shown), "{shown}");
        }
    }
}
