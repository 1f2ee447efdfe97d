//! Cells without values, so that the cells alone show every requested combination.

use crate::testbeds::profile;
use lab::Params;
use load::ask::Ask;
use results::{Cell, ModeRecord, Offered, Status};

use crate::testbeds::{BuildOptions, Refused};
use crate::variation::Varied;

/// Returns the cells of modes that could not be built.
pub fn of_modes(wanted: &BuildOptions<'_>, asks: &[Ask], records: &[ModeRecord]) -> Vec<Cell> {
    let mut cells = Vec::new();
    // Cells of modes that were built come from the run itself.
    for record in records.iter().filter(|record| record.status != Status::Ok) {
        for &mtu in wanted.mtus {
            for &offload in wanted.offloads {
                // The mode's reason applies to each of its cells.
                let reason = record.reason.clone().unwrap_or_default();
                let params = Params::new(mtu, offload);
                cells.extend(asks.iter().map(|ask| {
                    unmeasured(&record.mode, params, ask, None, record.status, &reason)
                }));
            }
        }
    }
    cells
}

/// Returns the cells of settings that a mode does not support.
pub fn of_settings(settings: &[Varied], asks: &[Ask], refused: &[Refused]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for Refused { mode, params, setting, status, reason } in refused {
        let setting = settings[*setting].to_string();
        cells.extend(asks.iter().map(|ask| {
            let setting = Some(setting.clone());
            unmeasured(mode, *params, ask, setting, *status, reason)
        }));
    }
    cells
}

/// Returns the load of a cell, whose rate is unknown if it is given in percent.
fn offered(ask: &Ask) -> Option<Offered> {
    let percent = ask.load_percent.map(|percent| Offered { percent: Some(percent), per_s: 0.0 });
    percent.or_else(|| measure::offered_rate(ask))
}

/// Builds a cell without values.
fn unmeasured(
    mode: &str,
    params: Params,
    ask: &Ask,
    setting: Option<String>,
    status: Status,
    reason: &str,
) -> Cell {
    Cell {
        offered: offered(ask),
        setting,
        status,
        reason: Some(reason.to_owned()),
        ..ask.cell(mode, profile(params.offload), params.mtu)
    }
}
