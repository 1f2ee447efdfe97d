//! A varied setting: applied to a testbed and restored.
//!
//! A named setting applies to all hosts. `sysctl:KEY=V` is written in every host that has the
//! key, or on the machine if no host has it (`net.core.netdev_budget`). A device setting applies
//! to the wire's NICs unless it names another device. A command applies to one host.

use std::fmt;
use std::sync::Arc;

use settings::proposal::{self, ProposalError};
use settings::{Change, Held, NamedSetting, Namespace, Request};

use crate::{Error, Host, NIC, Result};

/// Changes that are applied together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    request: Request,
    /// Host to apply to; `None`: all hosts.
    host: Option<String>,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Some(host) => write!(f, "{host}: {}", self.request),
            None => self.request.fmt(f),
        }
    }
}

impl Setting {
    /// Parses the value of `--vary`: `KIND=VALUE,VALUE…` is one setting per value. Changes joined
    /// with `+`, each with one value, are one setting.
    ///
    /// # Errors
    /// The malformed part, and the allowed values.
    pub fn parse_list(text: &str) -> std::result::Result<Vec<Setting>, ProposalError> {
        let requests = Request::parse_list(text)?;
        for named in requests.iter().flat_map(Request::named) {
            // Test hosts share all other sysctls with the machine, which must not change.
            if named.sysctl_path().is_some_and(|path| !path.starts_with("net/")) {
                let example = "only keys below net are allowed, such as net.core.netdev_budget";
                return Err(ProposalError::Wrong(format!("{named}: {example}")));
            }
        }
        Ok(requests.into_iter().map(|request| Setting { request, host: None }).collect())
    }

    /// Parses a named setting or a command for one host (`a`, `tenant-b`).
    ///
    /// # Errors
    /// The malformed part.
    pub fn of_host(host: &str, text: &str) -> std::result::Result<Setting, ProposalError> {
        Ok(Setting { request: Request::parse(text)?, host: Some(host.to_owned()) })
    }

    /// Applies it to a testbed. Dropping the returned value restores the previous values.
    ///
    /// # Errors
    /// A change that a device or the kernel refuses; earlier changes are restored.
    /// [`Error::NoHost`], [`Error::NoDevice`]; [`Error::OfMachine`] for a change that would reach
    /// beyond the host.
    pub fn apply(&self, hosts: &[Arc<Host>]) -> Result<Held> {
        let mut held = Held::default();
        match &self.host {
            Some(name) => self.apply_to(name, hosts, &mut held)?,
            None => {
                for named in self.request.named() {
                    apply_to_all(named, hosts, &mut held)?;
                }
            }
        }
        Ok(held)
    }

    fn apply_to(&self, name: &str, hosts: &[Arc<Host>], held: &mut Held) -> Result<()> {
        let host = hosts.iter().find(|known| known.name() == name).ok_or_else(|| {
            let names: Vec<&str> = hosts.iter().map(|host| host.name()).collect();
            Error::NoHost { host: name.to_owned(), hosts: names.join(", ") }
        })?;
        let changes = host
            .netns()
            .run(|| proposal::differing(self.request.changes(&namespace(host)?, Some(NIC))?))??;
        if let Some(change) = changes.iter().find(|change| reaches_beyond_host(change)) {
            return Err(Error::OfMachine(change.object()));
        }
        changes.into_iter().try_for_each(|change| Ok(held.make(host.netns(), change)?))
    }
}

fn apply_to_all(named: &NamedSetting, hosts: &[Arc<Host>], held: &mut Held) -> Result<()> {
    let mut found = false;
    for host in hosts {
        let read = host.netns().run(|| named.changes(&namespace(host)?, Some(NIC)))?;
        let changes = match read {
            // Some hosts of a mode lack the NIC, or a private copy of the key.
            Err(error) if error.is_absent() => continue,
            read => read?,
        };
        found = true;
        for change in changes {
            held.make(host.netns(), change)?;
        }
    }
    match named.sysctl_path() {
        _ if found => Ok(()),
        // No host has a private copy of the key, so it exists once for the machine.
        Some(path) => Ok(held.make_of_machine(path, named.value())?),
        None => Err(Error::NoDevice {
            setting: named.to_string(),
            device: named.device().unwrap_or(NIC).to_owned(),
        }),
    }
}

/// Returns a host's namespace by its descriptor, since it has no path.
fn namespace(host: &Host) -> std::result::Result<Namespace, sys::Error> {
    Namespace::of(host.netns(), None, host.name())
}

/// Returns whether a change affects a file without a namespace, or another namespace.
fn reaches_beyond_host(change: &Change) -> bool {
    let elsewhere = change.place.as_ref().is_none_or(|place| place.path.is_some());
    elsewhere || matches!(change.setting, settings::Setting::Sysfs { device: None, .. })
}
