//! What `overlane watch --peer` knows of another host: a part of an interval.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::event::Encapsulation;
use crate::told::Addresses;

/// The far half.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PeerSeen {
    /// Address and port of the other host's `overlane watch --serve`.
    pub address: String,
    /// Why it does not answer now; `null`: it does. What is below is then of before.
    pub problem: Option<String>,
    /// Its clock; `null`: not known yet.
    pub clock: Option<ClockSeen>,
    /// How long flows have been compared, seconds, since it answered first.
    pub compared_s: f64,
    /// How old the last comparison is, seconds.
    pub age_s: f64,
    /// Flows between the two hosts, the one that lost most first.
    pub flows: Vec<FlowSeen>,
    /// Flows of which nothing is told here, for want of room.
    pub other_flows: u64,
    /// Packets that neither end could count by flow, for want of room.
    pub uncounted: u64,
}

/// Another host's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClockSeen {
    /// How far ahead of this host's it is, ns; less than 0: behind.
    pub ahead_ns: i64,
    /// How wrong that is at most, ns.
    pub error_ns: u64,
    /// Round trip to it, ns.
    pub round_trip_ns: u64,
}

/// Where a flow goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From this host to the other.
    Out,
    /// From the other host to this one.
    In,
}

/// A flow between the hosts, in one direction, since it is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FlowSeen {
    /// Its addresses on the wire; in a tunnel, the inner ones.
    pub flow: Addresses,
    /// Kind of its tunnel; `null`: it is in none.
    pub encapsulation: Option<Encapsulation>,
    /// Network identifier of VXLAN and Geneve; key of GRE, where it has one.
    pub vni: Option<u32>,
    /// From which host to which.
    pub direction: Direction,
    /// Packets that left the one host; a GSO packet is those that it stands for.
    pub left: u64,
    /// Their bytes, as IP packets on the wire.
    pub left_bytes: u64,
    /// Packets that came to the other.
    pub came: u64,
    /// Their bytes.
    pub came_bytes: u64,
    /// Packets that left and did not come; `null` where none came: the flow may go elsewhere.
    pub lost: Option<u64>,
    /// Packets that are in flight, or lost: they left too lately to be missed.
    pub in_flight: u64,
    /// Namespaces and devices by which it left.
    pub left_by: Vec<String>,
    /// Namespaces and devices by which it came.
    pub came_by: Vec<String>,
    /// Places that one of its packets passed on the other host, in order; none: no packet of it
    /// was followed there.
    pub there: Vec<String>,
}

impl PeerSeen {
    /// What is known of the other host itself, in a line.
    pub fn head(&self) -> String {
        let mut head = format!("peer {}: ", self.address);
        // Writing to a String cannot fail.
        let _ = match &self.clock {
            Some(clock) => write!(head, "{clock}, compared for {:.1} s", self.compared_s),
            None => write!(head, "nothing known yet"),
        };
        if let Some(problem) = self.trouble() {
            let _ = write!(head, "; does not answer: {problem}");
            if self.compared_s > 0.0 {
                let _ = write!(head, "; last compared {:.0} s ago", self.age_s);
            }
        }
        head
    }

    /// Why it does not answer, without its address, with which an error begins.
    pub fn trouble(&self) -> Option<&str> {
        let problem = self.problem.as_deref()?;
        let behind = problem.strip_prefix(&self.address).and_then(|rest| rest.strip_prefix(": "));
        Some(behind.unwrap_or(problem))
    }

    /// As text.
    pub fn text(&self) -> String {
        let mut text = self.head() + "\n";
        for flow in &self.flows {
            text += &flow.text();
        }
        if self.flows.is_empty() && self.problem.is_none() && self.clock.is_some() {
            text += "no packet of these flows between the hosts\n";
        }
        if self.other_flows > 0 {
            let _ = writeln!(text, "{} flows more, without room here", self.other_flows);
        }
        if self.uncounted > 0 {
            let _ = writeln!(text, "{} packets of flows without room at an end", self.uncounted);
        }
        text
    }

    /// Packets that were lost, over all flows.
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
    /// Its addresses, and the tunnel.
    pub fn name(&self) -> String {
        match self.encapsulation {
            Some(encapsulation) => format!("{} in {}", self.flow, encapsulation.within(self.vni)),
            None => self.flow.to_string(),
        }
    }

    /// What became of its packets between the hosts, in words.
    pub fn fate(&self) -> String {
        let fate = match self.lost {
            None => "none came: lost, or another way".to_owned(),
            Some(lost) => {
                let share = 100.0 * lost as f64 / self.left.max(1) as f64;
                let share = if lost > 0 { format!(" ({share:.2}%)") } else { String::new() };
                format!("{lost} lost between the hosts{share}, {} in flight", self.in_flight)
            }
        };
        let (left, came) = match self.direction {
            Direction::Out => ("left here", "came there"),
            Direction::In => ("left there", "came here"),
        };
        format!("{} {left}, {} {came}: {fate}", self.left, self.came)
    }

    fn text(&self) -> String {
        let by = |places: &[String]| match places {
            [] => "-".to_owned(),
            some => some.join(", "),
        };
        let mut text = format!("  {}\n    {}\n", self.name(), self.fate());
        let _ = writeln!(text, "    by {} -> {}", by(&self.left_by), by(&self.came_by));
        if !self.there.is_empty() {
            let _ = writeln!(text, "    there: {}", self.there.join(" > "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_told_with_its_error_and_a_peer_with_its_problem() {
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
