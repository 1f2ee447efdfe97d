//! Values that the user asked for by name. A run without one of them has failed in part, even if it
//! is complete otherwise.

use results::{Cell, Results, Status};

/// Names on the command line, without those from plans and groups: a plan is made for many
/// machines.
#[derive(Debug, Default)]
pub struct ByName {
    pub modes: Vec<String>,
    /// Settings and engines.
    pub has_values: bool,
}

impl ByName {
    pub fn of(modes: &str, has_plan: bool) -> ByName {
        if has_plan {
            return ByName::default();
        }
        let modes = modes.split(',').map(|name| name.trim().to_owned()).collect();
        ByName { modes, has_values: true }
    }

    /// Returns whether a mode, or a value in every mode, cannot be had on this machine.
    pub fn is_lacking(&self, results: &Results) -> bool {
        let is_unsupported = |mode: &results::ModeRecord| {
            mode.status == Status::Unsupported && self.modes.contains(&mode.mode)
        };
        if results.modes.iter().any(is_unsupported) {
            return true;
        }
        let nowhere = |same: &dyn Fn(&Cell) -> bool| {
            let mut cells = results.cells.iter().filter(|cell| same(cell)).peekable();
            cells.peek().is_some() && cells.all(|cell| cell.status == Status::Unsupported)
        };
        // Cells of a mode that cannot be built say nothing about a value.
        let built = |cell: &Cell| {
            results.modes.iter().any(|m| m.mode == cell.mode && m.status == Status::Ok)
        };
        self.has_values
            && results.cells.iter().any(|of| {
                nowhere(&|cell| built(cell) && cell.engine == of.engine)
                    || of.setting.is_some()
                        && nowhere(&|cell| built(cell) && cell.setting == of.setting)
            })
    }
}
