//! What a cell does, apart from where: everything that two cells must have in
//! common for their figures to compare.

pub(crate) use results::verdict::{is_time, worth};
use results::{Cell, Engine, Offered, Results, Task, Unit};

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
    pub(crate) socket_buffer_bytes: Option<u32>,
    pub(crate) setting: Option<&'a str>,
    pub(crate) gso: bool,
    pub(crate) engine: &'a str,
}

/// Where a load was asked for in percent, the rate differs from mode to mode
/// and is no part of the identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Load {
    /// Percent of the path's own maximum, as bits: for numbers above 0 they
    /// order as the numbers do.
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
            socket_buffer_bytes: cell.socket_buffer_bytes,
            setting: cell.setting.as_deref(),
            gso: cell.gso,
            engine: cell.engine.name(),
        }
    }

    /// `tcp_stream, 64 KiB messages, MTU 1500`, with whatever is not as usual.
    pub(crate) fn title(&self) -> String {
        self.described(true, true)
    }

    /// As [`Work::title`], without the message size where `sized` is false, and
    /// without the setting where `set` is false.
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

    /// `at 50% load`; none where it ran as fast as it went.
    pub(crate) fn load_words(&self) -> Option<String> {
        self.load.map(|load| match load {
            Load::Percent(bits) => format!("at {}% load", round(f64::from_bits(bits))),
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

/// `tcp_stream 64 KiB, offload full`, with whatever else the plan varies.
pub(crate) fn place(results: &Results, cell: &Cell) -> String {
    let plan = &results.plan;
    let work = Work::of(cell);
    let mut place = cell.workload.to_string();
    let mut add = |wanted: bool, text: String| {
        if wanted {
            place.push_str(&text);
        }
    };
    add(plan.sizes.len() > 1, format!(" of {}", bytes(cell.message_bytes.into())));
    add(plan.flows.len() > 1, format!(" in {}", count(cell.flows as usize, "flow")));
    add(plan.outstanding.len() > 1, format!(" with {} outstanding", cell.outstanding));
    let load = work.load_words();
    add(load.is_some(), format!(" {}", load.unwrap_or_default()));
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

/// Rounds to two decimals: 95, but 99.5.
pub(crate) fn round(percent: f64) -> f64 {
    (percent * 100.0).round() / 100.0
}
