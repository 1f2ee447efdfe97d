//! The line below every table: source of its figures.

use results::{Placement, Results};

use crate::style::plain;
use crate::unit::count;

/// Returns machine and plan in one line: CPU, kernel, date, blocks, seed, placement. Without it a
/// table cannot be compared with another.
pub fn machine_line(results: &Results) -> String {
    let machine = &results.machine;
    let mut model = plain(&machine.cpu_model);
    // Trademarks and filler words lengthen the line without information.
    for noise in ["(R)", "(TM)", "(r)", "(tm)", " CPU", " Processor"] {
        model = model.replace(noise, "");
    }
    let model = model.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = vec![model, count(machine.cpus, "CPU")];
    parts.extend(machine.hypervisor.as_ref().map(|vendor| format!("under {}", plain(vendor))));
    parts.push(format!("Linux {}", plain(&machine.kernel)));
    parts.push(plain(results.started.get(..10).unwrap_or(&results.started)));
    parts.push(plan(results));
    format!("{}; overlane {}", parts.join(", "), plain(&results.overlane))
}

fn plan(results: &Results) -> String {
    let plan = &results.plan;
    format!(
        "{} of {} s, seed {}, {}",
        count(plan.blocks_done as usize, "block"),
        plan.duration_s,
        plan.seed,
        placement(&plan.placement)
    )
}

fn placement(placement: &Placement) -> String {
    let list = |cpus: &[usize]| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    if placement.client_cpus.is_empty() && placement.server_cpus.is_empty() {
        return "not pinned".to_string();
    }
    format!(
        "client on CPU {}, server on {}",
        list(&placement.client_cpus),
        list(&placement.server_cpus)
    )
}
