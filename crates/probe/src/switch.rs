//! Switching settings of this machine off for one step of a search, through the journal.

use std::path::Path;

use netstate::Netlink;
use settings::change::{Change, Namespace, Target};
use settings::trial::Trial;
use sys::ethtool::Ethtool;

use crate::exchange::Trouble;
use crate::features::order;
use crate::report::Setting;

/// Code of journal entries that a search makes.
const CODE: &str = "probe";

/// Switches settings of this machine off for one step of a search.
pub trait Switch {
    /// Switches these settings off, runs the step, and switches them on again.
    ///
    /// # Errors
    /// If a setting cannot be changed or restored, as text.
    fn without(
        &mut self,
        settings: &[Setting],
        step: &mut dyn FnMut() -> Result<bool, Trouble>,
    ) -> Result<bool, Trouble>;
}

/// Switches settings of this machine through the journal.
#[derive(Debug)]
pub struct Journaled<'a> {
    /// Directory of the journal.
    pub directory: &'a Path,
}

impl Switch for Journaled<'_> {
    fn without(
        &mut self,
        settings: &[Setting],
        step: &mut dyn FnMut() -> Result<bool, Trouble>,
    ) -> Result<bool, Trouble> {
        let features = settings.iter().map(|one| (one.device.as_str(), one.feature.as_str()));
        let mut trial = switch_off(self.directory, features).map_err(Trouble::Here)?;
        let outcome = step();
        // Restore the settings also after a failed step.
        trial.take_back().map_err(|error| Trouble::Here(error.to_string()))?;
        outcome
    }
}

/// Switches features of devices in the namespace of the calling thread off. The trial restores them
/// when it is dropped. A feature that this device cannot change stays on, so it is never taken for
/// the cause.
///
/// # Errors
/// If a setting cannot be read or changed, as text. Then all are restored.
pub(crate) fn switch_off<'a>(
    directory: &Path,
    features: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Trial, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let (netlink, ethtool) =
        (Netlink::open().map_err(|e| failed(&e))?, Ethtool::open().map_err(|e| failed(&e))?);
    let namespace = Namespace::here().map_err(|e| failed(&e))?;
    let mut ordered: Vec<(&str, &str)> = features.collect();
    ordered.sort_by_key(|(_, feature)| order(feature));
    let mut changes = Vec::new();
    for (device, feature) in ordered {
        let link = netlink.link(device).map_err(|e| failed(&e))?;
        let states = ethtool.features(device).map_err(|e| failed(&e))?;
        if states.get(feature).is_some_and(|state| state.changeable) {
            let target = Target { namespace: namespace.clone(), interface: &link };
            changes.push(Change::feature(target, feature, false));
        }
    }
    let mut trial = Trial::begin(directory, CODE, changes).map_err(|e| failed(&e))?;
    trial.make().map_err(|e| failed(&e))?;
    Ok(trial)
}
