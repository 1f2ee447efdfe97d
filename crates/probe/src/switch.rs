//! Switching settings of this machine off for one step of a search, through the journal.

use std::path::Path;

use netstate::Netlink;
use settings::change::{Change, Namespace, Target};
use settings::trial::Trial;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;

use crate::exchange::Trouble;
use crate::features::order;
use crate::report::{End, HopFacts, Setting};

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
    pub directory: &'a Path,
    /// Devices between the ends that may be switched.
    pub hops: &'a [Hop],
}

/// A device between the ends, on this machine.
#[derive(Debug)]
pub struct Hop {
    facts: HopFacts,
    /// Its namespace, and a path that opens it; `None`: that of this end.
    place: Option<(NetNs, String)>,
}

impl Hop {
    /// Reads a device of the calling thread's namespace.
    ///
    /// # Errors
    /// If there is no such device, as text.
    pub fn here(device: &str) -> Result<Hop, String> {
        let facts =
            HopFacts { netns: None, device: device.to_owned(), features_on: features_on(device)? };
        Ok(Hop { facts, place: None })
    }

    /// Reads a device of a namespace that is shown as `label`. `path` opens it.
    ///
    /// # Errors
    /// If there is no such device, or the namespace cannot be entered, as text.
    pub fn within(netns: NetNs, path: &str, label: &str, device: &str) -> Result<Hop, String> {
        let features_on = netns.run(|| features_on(device)).map_err(|e| e.to_string())??;
        let (label, device) = (label.to_owned(), device.to_owned());
        let facts = HopFacts { netns: Some(label), device, features_on };
        Ok(Hop { facts, place: Some((netns, path.to_owned())) })
    }

    /// Returns the facts for [`crate::run::Options`].
    pub fn facts(&self) -> &HopFacts {
        &self.facts
    }
}

fn features_on(device: &str) -> Result<Vec<String>, String> {
    let features = Ethtool::open().and_then(|ethtool| ethtool.features(device));
    let features = features.map_err(|error| error.to_string())?.into_iter();
    Ok(features.filter(|(_, state)| state.active).map(|(name, _)| name).collect())
}

impl Switch for Journaled<'_> {
    fn without(
        &mut self,
        settings: &[Setting],
        step: &mut dyn FnMut() -> Result<bool, Trouble>,
    ) -> Result<bool, Trouble> {
        let mut changes = Vec::new();
        for one in settings {
            let hop = self.hops.iter().find(|hop| {
                one.end == End::Hop
                    && hop.facts.netns == one.netns
                    && hop.facts.device == one.device
            });
            let here = || change(Namespace::here(), &one.device, &one.feature);
            let made = match hop.and_then(|hop| hop.place.as_ref()) {
                None => here(),
                Some((netns, path)) => {
                    let label = one.netns.as_deref().unwrap_or_default();
                    let place = Namespace::of(netns, Some(path.clone()), label);
                    let within = netns.run(|| change(place, &one.device, &one.feature));
                    within.unwrap_or_else(|error| Err(error.to_string()))
                }
            };
            changes.extend(made.map_err(Trouble::Here)?.map(|made| (order(&one.feature), made)));
        }
        let mut trial = begin(self.directory, changes).map_err(Trouble::Here)?;
        let outcome = step();
        // Restore the settings also after a failed step.
        trial.take_back().map_err(|error| Trouble::Here(error.to_string()))?;
        outcome
    }
}

/// Switches features of a device in the namespace of the calling thread off. The trial restores them
/// when it is dropped.
///
/// # Errors
/// If a setting cannot be read or changed, as text. Then all are restored.
pub(crate) fn switch_off(
    directory: &Path,
    device: &str,
    features: &[String],
) -> Result<Trial, String> {
    let mut changes = Vec::new();
    for feature in features {
        let made = change(Namespace::here(), device, feature)?;
        changes.extend(made.map(|made| (order(feature), made)));
    }
    begin(directory, changes)
}

/// Returns the change that switches a feature off, of a device in the namespace of the calling
/// thread. `None`: this device cannot change it. Then it stays on, and so is never taken for the
/// cause.
fn change(
    namespace: sys::Result<Namespace>,
    device: &str,
    feature: &str,
) -> Result<Option<Change>, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let namespace = namespace.map_err(|e| failed(&e))?;
    let link = Netlink::open().and_then(|netlink| netlink.link(device));
    let link = link.map_err(|e| failed(&e))?;
    let states = Ethtool::open().and_then(|ethtool| ethtool.features(device));
    let states = states.map_err(|e| failed(&e))?;
    let target = Target { namespace, interface: &link };
    let is_changeable = states.get(feature).is_some_and(|state| state.changeable);
    Ok(is_changeable.then(|| Change::feature(target, feature, false)))
}

/// Makes changes in the order of their numbers.
fn begin(directory: &Path, mut changes: Vec<(usize, Change)>) -> Result<Trial, String> {
    changes.sort_by_key(|(order, _)| *order);
    let changes = changes.into_iter().map(|(_, change)| change).collect();
    let trial = Trial::begin(directory, CODE, changes);
    let mut trial = trial.map_err(|error| error.to_string())?;
    trial.make().map_err(|error| error.to_string())?;
    Ok(trial)
}
