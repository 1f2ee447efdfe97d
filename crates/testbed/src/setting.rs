//! A setting that is varied: put on a testbed, and taken back.
//!
//! A named setting is of every host: `sysctl:KEY=V` is written in every host that has the
//! key, and on the machine where no host has it (`net.core.netdev_budget`); what is of a
//! device is of the wire's NICs, unless it names another. A command is of one host.

use std::fmt;
use std::sync::Arc;

use settings::proposal::{self, ProposalError};
use settings::{Change, Held, NamedSetting, Namespace, Request};

use crate::{Error, Host, NIC, Result};

/// What is changed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    request: Request,
    /// The host that it is of; `None`: all of them.
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
    /// What `--vary` says: `KIND=VALUE,VALUE…`, a setting a value; or several
    /// changes joined with `+`, each with one value, as one setting.
    ///
    /// # Errors
    /// What is wrong with it, and what is allowed.
    pub fn parse_list(text: &str) -> std::result::Result<Vec<Setting>, ProposalError> {
        let requests = Request::parse_list(text)?;
        for named in requests.iter().flat_map(Request::named) {
            // The hosts share everything else with the machine, which is not theirs.
            if named.sysctl_path().is_some_and(|path| !path.starts_with("net/")) {
                let example = "a key below net, as net.core.netdev_budget";
                return Err(ProposalError::Wrong(format!("{named}: {example}")));
            }
        }
        Ok(requests.into_iter().map(|request| Setting { request, host: None }).collect())
    }

    /// A named setting or a command in one host (`a`, `tenant-b`).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_host(host: &str, text: &str) -> std::result::Result<Setting, ProposalError> {
        Ok(Setting { request: Request::parse(text)?, host: Some(host.to_owned()) })
    }

    /// Puts it on a testbed; what was there comes back with the answer's end.
    ///
    /// # Errors
    /// A change that a device or the kernel refuses; what was changed before it is given
    /// back. [`Error::NoHost`], [`Error::NoDevice`]; [`Error::OfMachine`] for a change that
    /// would reach beyond the host.
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
            // Not every host of a mode has the NIC, or a namespace of its own for the key.
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
        // No host has a copy of the key, so there is one for the whole machine.
        Some(path) => Ok(held.make_of_machine(path, named.value())?),
        None => Err(Error::NoDevice {
            setting: named.to_string(),
            device: named.device().unwrap_or(NIC).to_owned(),
        }),
    }
}

/// Where a host's changes are: its descriptor leads there, no path does.
fn namespace(host: &Host) -> std::result::Result<Namespace, sys::Error> {
    Namespace::of(host.netns(), None, host.name())
}

/// A file that has no namespace, or a namespace that is not the host's.
fn reaches_beyond_host(change: &Change) -> bool {
    let elsewhere = change.place.as_ref().is_none_or(|place| place.path.is_some());
    elsewhere || matches!(change.setting, settings::Setting::Sysfs { device: None, .. })
}
