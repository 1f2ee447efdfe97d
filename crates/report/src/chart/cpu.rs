//! Charts of CPU time per unit of work, stacked by kind.

use results::{Cell, CpuSeconds, DemandUnit, Results, Unit};

use super::Chart;
use super::bars::{Bars, Row, draw};
use super::scale::{Kind, short};
use crate::panel::{name, panels};
use crate::style::plain;

const KINDS: [&str; 4] = ["user", "system", "softirq", "irq"];

pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let chart = |panel: &crate::panel::Panel<'_>| {
        let mut rows = Vec::new();
        for group in &panel.groups {
            rows.push(Row::heading(format!("offload {}", plain(group.offload))));
            rows.extend(group.cells.iter().filter_map(|cell| {
                let stack = per_unit(cell)?;
                let figure = short(stack.iter().sum());
                Some(Row { name: name(cell), stack, figure, ..Row::default() })
            }));
        }
        // No cell has CPU times, so there is nothing to draw.
        if rows.iter().all(|row| row.heading) {
            return None;
        }
        let words = format!("CPU time, µs per {}", unit_of_work(panel.first()));
        let legend = KINDS.map(String::from).to_vec();
        let bars = Bars { words, kind: Kind::Linear, mark: None, legend, rows };
        Chart::new(
            "cpu",
            panel.title(),
            "All programs of the machine. Stacked in the order of the legend.",
            draw(&bars),
        )
    };
    panels(results).iter().filter_map(chart).collect()
}

fn unit_of_work(cell: &Cell) -> &'static str {
    match cell.workload.workload().service_demand_unit() {
        DemandUnit::PerKib => "KiB",
        DemandUnit::PerDatagram => "datagram",
        DemandUnit::PerConnection => "connection",
        DemandUnit::PerTransaction => "transaction",
    }
}

/// Returns µs of each kind per unit of work, over all valid samples.
fn per_unit(cell: &Cell) -> Option<Vec<f64>> {
    let mut seconds = [0.0; 4];
    let mut work = 0.0;
    for sample in cell.samples.iter().filter(|sample| sample.valid) {
        let mut add = |cpu: &CpuSeconds| {
            let kinds = [cpu.user, cpu.system, cpu.softirq, cpu.irq];
            seconds.iter_mut().zip(kinds).for_each(|(sum, kind)| *sum += kind);
        };
        add(&sample.cpu);
        sample.peer_cpu.iter().for_each(add);
        work += match cell.unit {
            Unit::Bits => sample.bits_per_s * sample.seconds / 8.0 / 1024.0,
            // Other units count the work directly.
            _ => sample.units as f64,
        };
    }
    let total: f64 = seconds.iter().sum();
    // Without work or CPU time there is no quotient.
    (work > 0.0 && total > 0.0).then(|| seconds.iter().map(|s| 1e6 * s / work).collect())
}
