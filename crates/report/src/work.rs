//! A cell's work, independent of its mode: all properties that two cells must share for their
//! figures to be comparable.

pub(crate) use results::verdict::{is_time, worth};
use results::{Beside, Cell, Engine, Offered, Results, Task, Unit};

use crate::style::plain;
use crate::unit::{bytes, count, with_unit};

/// A cell's identity besides mode, role and offload profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Work<'a> {
    pub(crate) workload: Task,
    pub(crate) message_bytes: u32,
    pub(crate) mtu: u32,
    pub(crate) flows: u32,
    pub(crate) outstanding: u32,
    pub(crate) load: Option<Load>,
    pub(crate) beside: Option<Beside>,
    pub(crate) socket_buffer_bytes: Option<u32>,
    pub(crate) setting: Option<&'a str>,
    pub(crate) gso: bool,
    pub(crate) engine: &'a str,
}

/// An offered load. If it was given in percent, the rate differs between modes and is not part of
/// the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Load {
    /// Percent of the path's own maximum, as bits. For numbers above 0, bits have the same order as
    /// the numbers.
    Percent(u64),
    /// Rate per second, as bits.
    PerSecond(u64),
}

impl Load {
    fn of(offered: Offered) -> Load {
        match offered.percent {
            Some(percent) => Load::Percent(percent.to_bits()),
            None => Load::PerSecond(offered.per_s.to_bits()),
        }
    }
}

impl<'a> Work<'a> {
    pub(crate) fn of(cell: &'a Cell) -> Work<'a> {
        Work {
            workload: cell.workload,
            message_bytes: cell.message_bytes,
            mtu: cell.mtu,
            flows: cell.flows,
            outstanding: cell.outstanding,
            load: cell.offered.map(Load::of),
            beside: cell.beside,
            socket_buffer_bytes: cell.socket_buffer_bytes,
            setting: cell.setting.as_deref(),
            gso: cell.gso,
            engine: cell.engine.name(),
        }
    }

    /// Returns `tcp_stream, 64 KiB messages, MTU 1500`, with all properties that differ from the
    /// default.
    pub(crate) fn title(&self) -> String {
        self.described(true, true)
    }

    /// As [`Work::title`]; without the message size if `sized` is false, without the setting if
    /// `set` is false.
    pub(crate) fn described(&self, sized: bool, set: bool) -> String {
        let mut title = format!("{}{}", self.workload, if self.gso { " with GSO" } else { "" });
        if sized {
            title.push_str(&format!(", {} messages", bytes(self.message_bytes.into())));
        }
        if self.flows != 1 {
            title.push_str(&format!(", {} flows", self.flows));
        }
        if self.outstanding != 1 {
            title.push_str(&format!(", {} outstanding", self.outstanding));
        }
        title.push_str(&self.load_words().map(|load| format!(", {load}")).unwrap_or_default());
        if let Some(beside) = self.beside {
            title.push_str(&format!(", {}", beside_words(beside)));
        }
        title.push_str(&format!(", MTU {}", self.mtu));
        if let Some(buffer) = self.socket_buffer_bytes {
            title.push_str(&format!(", socket buffer {}", bytes(buffer.into())));
        }
        if set && let Some(setting) = self.setting {
            title.push_str(&format!(", {}", plain(setting)));
        }
        if self.engine != Engine::Overlane.name() {
            title.push_str(&format!(", by {}", self.engine));
        }
        title
    }

    /// Returns `at 50% load`; `None` for an unlimited load.
    pub(crate) fn load_words(&self) -> Option<String> {
        self.load.map(|load| match load {
            Load::Percent(bits) => format!("at {}% load", round(f64::from_bits(bits))),
            // Datagrams have a rate that people know in bits.
            Load::PerSecond(bits) if self.workload.workload().unit() == Unit::Datagrams => {
                let bits_per_s = f64::from_bits(bits) * 8.0 * f64::from(self.message_bytes);
                format!("at {}", with_unit(bits_per_s, Unit::Bits))
            }
            Load::PerSecond(bits) => {
                let unit = match self.workload.workload().unit() {
                    Unit::Datagrams => Unit::Datagrams,
                    _ => Unit::Transactions,
                };
                format!("at {}", with_unit(f64::from_bits(bits), unit))
            }
        })
    }
}

/// Returns `tcp_stream 64 KiB, offload full`, with all other properties that the plan varies.
pub(crate) fn place(results: &Results, cell: &Cell) -> String {
    let plan = &results.plan;
    let work = Work::of(cell);
    let mut place = cell.workload.to_string();
    let mut add = |wanted: bool, text: String| {
        if wanted {
            place.push_str(&text);
        }
    };
    // Properties with a single value in the plan are the same everywhere, so leave them out.
    add(plan.sizes.len() > 1, format!(" of {}", bytes(cell.message_bytes.into())));
    add(plan.flows.len() > 1, format!(" in {}", count(cell.flows as usize, "flow")));
    add(plan.outstanding.len() > 1, format!(" with {} outstanding", cell.outstanding));
    let load = work.load_words();
    add(load.is_some(), format!(" {}", load.unwrap_or_default()));
    if let Some(beside) = cell.beside {
        add(true, format!(" {}", beside_words(beside)));
    }
    add(plan.mtu.len() > 1, format!(" at MTU {}", cell.mtu));
    if let Some(buffer) = cell.socket_buffer_bytes {
        add(plan.socket_buffers.len() > 1, format!(" with socket buffer {}", bytes(buffer.into())));
    }
    if let Some(setting) = &cell.setting {
        add(true, format!(" with {}", plain(setting)));
    }
    add(plan.engines.len() > 1, format!(" by {}", cell.engine));
    add(true, format!(" with offload {}", cell.offload));
    place
}

/// Returns `beside tcp_stream`.
fn beside_words(beside: Beside) -> String {
    let names: Vec<&str> = beside.workloads().iter().map(|workload| workload.name()).collect();
    format!("beside {}", names.join(" and "))
}

/// Rounds to two decimals: 95, but 99.5.
pub(crate) fn round(percent: f64) -> f64 {
    (percent * 100.0).round() / 100.0
}
