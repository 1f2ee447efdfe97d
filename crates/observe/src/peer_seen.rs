//! Comparison with another host (`overlane watch --peer`), as part of an interval.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::event::Encapsulation;
use crate::record::Addresses;

/// The other host and the flows between the two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PeerSeen {
    /// Address and port of the other host's `overlane watch --serve`.
    pub address: String,
    /// Why it does not answer now; `null`: it answers. With a problem, the rest is from the last
    /// answer.
    pub problem: Option<String>,
    /// Its clock; `null`: not known yet.
    pub clock: Option<ClockSeen>,
    /// Time since the first comparison, seconds.
    pub compared_s: f64,
    /// Age of the last comparison, seconds.
    pub age_s: f64,
    /// Flows between the two hosts, the one that lost most first.
    pub flows: Vec<FlowSeen>,
    /// Number of flows left out for want of room.
    pub other_flows: u64,
    /// Packets that neither host could count by flow, for want of room.
    pub uncounted: u64,
}

/// Another host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClockSeen {
    /// Offset to this host's clock, ns; negative: it is behind.
    pub ahead_ns: i64,
    /// Largest possible error of the offset, ns.
    pub error_ns: u64,
    /// Round-trip time, ns.
    pub round_trip_ns: u64,
}

/// Direction of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From this host to the other.
    Out,
    /// From the other host to this one.
    In,
}

/// A flow between the hosts, in one direction. Counts start with the first comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FlowSeen {
    /// Its addresses on the wire; for a tunnel, the inner ones.
    pub flow: Addresses,
    /// Kind of its tunnel; `null`: no tunnel.
    pub encapsulation: Option<Encapsulation>,
    /// Network identifier of VXLAN and Geneve; key of GRE, where it has one.
    pub vni: Option<u32>,
    /// Direction between the hosts.
    pub direction: Direction,
    /// Packets that left the sending host; a GSO packet counts as the packets it stands for.
    pub left: u64,
    /// Their bytes, as IP packets on the wire.
    pub left_bytes: u64,
    /// Packets that arrived at the receiving host.
    pub came: u64,
    /// Their bytes.
    pub came_bytes: u64,
    /// Packets that left and did not arrive; `null` if none arrived: the flow may have another
    /// destination.
    pub lost: Option<u64>,
    /// Packets in flight or lost: they left too recently to be counted as lost.
    pub in_flight: u64,
    /// Namespaces and devices that it left through.
    pub left_by: Vec<String>,
    /// Namespaces and devices that it arrived at.
    pub came_by: Vec<String>,
    /// Places that one of its packets passed on the other host, in order; empty: no packet of it
    /// was followed there.
    pub there: Vec<String>,
}

impl PeerSeen {
    /// Describes the other host in a line.
    pub fn head(&self) -> String {
        let mut head = format!("peer {}: ", self.address);
        // Writing to a String cannot fail.
        let _ = match &self.clock {
            Some(clock) => write!(head, "{clock}, compared for {:.1} s", self.compared_s),
            None => write!(head, "no answer yet"),
        };
        if let Some(problem) = self.trouble() {
            let _ = write!(head, "; does not answer: {problem}");
            if self.compared_s > 0.0 {
                let _ = write!(head, "; last compared {:.0} s ago", self.age_s);
            }
        }
        head
    }

    /// Returns why it does not answer, without the address with which the error begins.
    pub fn trouble(&self) -> Option<&str> {
        let problem = self.problem.as_deref()?;
        // The line already begins with the address.
        let behind = problem.strip_prefix(&self.address).and_then(|rest| rest.strip_prefix(": "));
        Some(behind.unwrap_or(problem))
    }

    /// Renders the comparison as text.
    pub fn text(&self) -> String {
        let mut text = self.head() + "\n";
        for flow in &self.flows {
            text += &flow.text();
        }
        if self.flows.is_empty() && self.problem.is_none() && self.clock.is_some() {
            text += "no packets of these flows between the hosts\n";
        }
        if self.other_flows > 0 {
            let _ = writeln!(text, "{} more flows, for which there is no room\n", self.other_flows);
        }
        if self.uncounted > 0 {
            let _ = writeln!(
                text,
                "{} packets of flows that one of the hosts had no room to count\n",
                self.uncounted
            );
        }
        text
    }

    /// Returns the number of lost packets over all flows.
    pub fn lost(&self) -> u64 {
        self.flows.iter().filter_map(|flow| flow.lost).fold(0, u64::saturating_add)
    }
}

impl std::fmt::Display for ClockSeen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |ns: f64| ns / 1e6;
        write!(
            f,
            "clock {:+.3} ms ± {:.3} ms, round trip {:.3} ms",
            ms(self.ahead_ns as f64),
            ms(self.error_ns as f64),
            ms(self.round_trip_ns as f64)
        )
    }
}

impl FlowSeen {
    /// Returns its addresses and tunnel.
    pub fn name(&self) -> String {
        match self.encapsulation {
            Some(encapsulation) => format!("{} in {}", self.flow, encapsulation.within(self.vni)),
            None => self.flow.to_string(),
        }
    }

    /// Describes what happened to its packets between the hosts.
    pub fn fate(&self) -> String {
        let fate = match self.lost {
            None => "none arrived: lost, or another path".to_owned(),
            Some(lost) => {
                // No packet may have left yet.
                let share = 100.0 * lost as f64 / self.left.max(1) as f64;
                // A share of 0% says no more than the number.
                let share = if lost > 0 { format!(" ({share:.2}%)") } else { String::new() };
                format!("{lost} lost between the hosts{share}, {} in flight", self.in_flight)
            }
        };
        let (left, came) = match self.direction {
            Direction::Out => ("left here", "arrived there"),
            Direction::In => ("left there", "arrived here"),
        };
        format!("{} {left}, {} {came}: {fate}", self.left, self.came)
    }

    fn text(&self) -> String {
        let by = |places: &[String]| match places {
            [] => "-".to_owned(),
            some => some.join(", "),
        };
        let mut text = format!("  {}\n    {}\n", self.name(), self.fate());
        let (from, to) = match self.direction {
            Direction::Out => ("here", "there"),
            Direction::In => ("there", "here"),
        };
        let (left, came) = (by(&self.left_by), by(&self.came_by));
        let _ = writeln!(text, "    from {from}: {left}, to {to}: {came}");
        if !self.there.is_empty() {
            let _ = writeln!(text, "    path there: {}", self.there.join(" > "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_the_clock_error_and_the_peer_problem() {
        let clock = ClockSeen { ahead_ns: 1_200_000, error_ns: 40_000, round_trip_ns: 79_000 };
        let mut seen = PeerSeen {
            address: "192.0.2.2:5212".to_owned(),
            problem: None,
            clock: Some(clock),
            compared_s: 12.0,
            age_s: 0.2,
            flows: Vec::new(),
            other_flows: 0,
            uncounted: 0,
        };
        let known = "peer 192.0.2.2:5212: clock +1.200 ms ± 0.040 ms, round trip 0.079 ms, \
                     compared for 12.0 s";
        assert_eq!(seen.head(), known);
        seen.problem = Some("192.0.2.2:5212: the server's token is another".to_owned());
        let problem = "; does not answer: the server's token is another; last compared 0 s ago";
        assert_eq!(seen.head(), known.to_owned() + problem);
    }
}
