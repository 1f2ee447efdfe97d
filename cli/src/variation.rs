//! What is varied in the test hosts of a run: a setting, or a command whose inverse is
//! taken from the values before it.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use doctor::change::{Change, Setting as Kind};
use doctor::{apply, proposal};
use testbed::{Host, Setting};

use crate::exit::usage;

/// A setting of `--vary`, or what `--try` says.
pub enum Variation {
    /// Of all hosts, or of the wire's NICs.
    Setting(Setting),
    /// In one host.
    Command {
        /// Name of the host (`a`, `tenant-b`).
        host: String,
        /// As typed.
        command: String,
    },
}

/// What is in effect.
pub enum Applied {
    /// A setting.
    Setting(testbed::Applied),
    /// A command's changes, in the order in which they were made.
    Changes(Arc<Host>, Vec<Change>),
}

impl fmt::Display for Variation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Variation::Setting(setting) => setting.fmt(f),
            Variation::Command { host, command } => write!(f, "{host}: {command}"),
        }
    }
}

impl Variation {
    /// What `--vary` says: a setting a value.
    ///
    /// # Errors
    /// Usage.
    pub fn varied(text: &str) -> anyhow::Result<Vec<Variation>> {
        let settings = Setting::parse_list(text).map_err(|error| usage("--vary", error))?;
        Ok(settings.into_iter().map(Variation::Setting).collect())
    }

    /// What `--try` says: one setting, `offload:PROFILE`, or `HOST: COMMAND`.
    ///
    /// # Errors
    /// Usage.
    pub fn tried(text: &str) -> anyhow::Result<Variation> {
        let one = |text: &str| match Setting::parse_list(text) {
            Ok(mut settings) if settings.len() == 1 => Ok(Variation::Setting(settings.remove(0))),
            Ok(_) => Err(usage("--try", format!("{text:?}: one value can be tried at a time"))),
            Err(error) => {
                let command = "or HOST: COMMAND, as 'a: ethtool -K nic0 gro off'";
                Err(usage("--try", format!("{error}; {command}")))
            }
        };
        match text.split_once(':') {
            Some(("offload", profile)) => one(&format!("offload={}", profile.trim())),
            Some((host, command)) if host != "sysctl" && !host.contains(['=', ' ']) => {
                let (host, command) = (host.to_owned(), command.trim().to_owned());
                Ok(Variation::Command { host, command })
            }
            _ => one(text),
        }
    }

    /// Puts it on a testbed.
    ///
    /// # Errors
    /// What a device or the kernel refuses; a command whose inverse is not known, or
    /// that would change more than the test hosts.
    pub fn apply(&self, hosts: &[Arc<Host>]) -> anyhow::Result<Applied> {
        let (host, command) = match self {
            Variation::Setting(setting) => return Ok(Applied::Setting(setting.apply(hosts)?)),
            Variation::Command { host, command } => (host, command),
        };
        let host = hosts.iter().find(|known| known.name() == host).ok_or_else(|| {
            let names: Vec<&str> = hosts.iter().map(|host| host.name()).collect();
            anyhow!("no host {host}; there are: {}", names.join(", "))
        })?;
        let changes = host.netns().run(|| proposal::changes(command))??;
        if let Some(change) = changes.iter().find(|change| is_of_the_machine(change)) {
            return Err(anyhow!("{}: is the machine's, not a test host's", change.object()));
        }
        let mut made = Applied::Changes(Arc::clone(host), Vec::new());
        for change in changes {
            let answer = host.netns().run(|| {
                apply::write(&change, &change.to)?;
                Ok::<_, apply::Error>(apply::read(&change)?.is(&change.to))
            })?;
            let object = change.object();
            if let Applied::Changes(_, made) = &mut made {
                made.push(change);
            }
            let problem = match answer {
                Ok(true) => continue,
                Ok(false) => anyhow!("{object}: the kernel did not keep the value"),
                Err(error) => error.into(),
            };
            made.restore()?;
            return Err(problem);
        }
        Ok(made)
    }
}

/// A file that has no namespace, or a namespace that is not the host's.
fn is_of_the_machine(change: &Change) -> bool {
    let elsewhere = change.place.as_ref().is_none_or(|place| place.path.is_some());
    elsewhere || matches!(change.setting, Kind::Sysfs { device: None, .. })
}

impl Applied {
    /// Gives back what was there.
    ///
    /// # Errors
    /// The first that failed.
    pub fn restore(self) -> anyhow::Result<()> {
        match self {
            Applied::Setting(applied) => Ok(applied.restore()?),
            Applied::Changes(host, changes) => {
                for change in changes.iter().rev() {
                    let back = host.netns().run(|| apply::write(change, &change.from))?;
                    back.with_context(|| change.object())?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_a_setting_or_a_command_of_a_host_is_tried() {
        let name = |text: &str| Variation::tried(text).map(|tried| tried.to_string());
        assert_eq!(name("offload:no-tunnel").unwrap(), "offload=no-tunnel");
        assert_eq!(name("rps=2").unwrap(), "rps=2");
        let budget = "sysctl:net.core.netdev_budget=600";
        assert_eq!(name(budget).unwrap(), budget);
        let command = "tenant-a: ip link set eth0 gso_max_size 16000";
        assert_eq!(name(command).unwrap(), command);
        for (wrong, named) in [
            ("offload:some", "known: full"),
            ("ring=1,2", "one value"),
            ("ethtool -K nic0 gro off", "HOST: COMMAND"),
        ] {
            let error = name(wrong).unwrap_err().to_string();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}
