//! What `--vary` and `--try` of `lab run` say.

use std::fmt;

use lab::guest::GuestSetting;
use testbed::Setting;

use crate::exit::usage;

/// A setting that is varied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Varied {
    /// Put on the hosts of a testbed, and taken back.
    Hosts(Setting),
    /// What guests are started with: each value has a testbed of its own.
    Guests(GuestSetting),
}

impl fmt::Display for Varied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Varied::Hosts(setting) => setting.fmt(f),
            Varied::Guests(setting) => setting.fmt(f),
        }
    }
}

/// What `--vary` says: a setting a value.
///
/// # Errors
/// Usage.
pub fn varied(text: &str) -> anyhow::Result<Vec<Varied>> {
    // Wherever it is in a sum: that of guests says what goes together.
    if text.split('+').any(GuestSetting::is_named) {
        let settings = GuestSetting::parse_list(text).map_err(|error| usage("--vary", error))?;
        return Ok(settings.into_iter().map(Varied::Guests).collect());
    }
    let settings = Setting::parse_list(text).map_err(|error| usage("--vary", error))?;
    Ok(settings.into_iter().map(Varied::Hosts).collect())
}

/// What `--try` says: one setting, `offload:PROFILE`, or `HOST: COMMAND`.
///
/// # Errors
/// Usage.
pub fn tried(text: &str) -> anyhow::Result<Varied> {
    if GuestSetting::is_named(text) {
        let mut settings = GuestSetting::parse_list(text).map_err(|error| usage("--try", error))?;
        return match settings.len() {
            1 => Ok(Varied::Guests(settings.remove(0))),
            _ => Err(usage("--try", format!("{text:?}: one value can be tried at a time"))),
        };
    }
    let setting = match text.split_once(':') {
        Some(("offload", profile)) => one(&format!("offload={}", profile.trim())),
        Some((host, command)) if !KINDS.contains(&host) && !host.contains(['=', ' ']) => {
            Setting::of_host(host, command).map_err(|error| usage("--try", error))
        }
        _ => one(text),
    };
    setting.map(Varied::Hosts)
}

/// What is before the colon of a named setting; no host is called so.
const KINDS: [&str; 4] = ["sysctl", "feature", "coalesce", "sysfs"];

fn one(text: &str) -> anyhow::Result<Setting> {
    match Setting::parse_list(text) {
        Ok(mut settings) if settings.len() == 1 => Ok(settings.remove(0)),
        Ok(_) => Err(usage("--try", format!("{text:?}: one value can be tried at a time"))),
        Err(error) => {
            let command = "or HOST: COMMAND, as 'a: ethtool -K nic0 gro off'";
            Err(usage("--try", format!("{error}; {command}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_a_setting_or_a_command_of_a_host_is_tried() {
        let name = |text: &str| tried(text).map(|tried| tried.to_string());
        assert_eq!(name("offload:no-tunnel").unwrap(), "offload=no-tunnel");
        assert_eq!(name("rps=2").unwrap(), "rps=2");
        let budget = "sysctl:net.core.netdev_budget=600";
        assert_eq!(name(budget).unwrap(), budget);
        let command = "tenant-a: ip link set eth0 gso_max_size 16000";
        assert_eq!(name(command).unwrap(), command);
        assert_eq!(name("vm:queues=2+tap:sndbuf=4096").unwrap(), "vm:queues=2+tap:sndbuf=4096");
        for (wrong, named) in [
            ("vm:queues=1,2", "one value"),
            ("tap:x=1", "allowed are vm:cpus"),
            ("offload:some", "known: full"),
            ("ring=1,2", "one value"),
            ("ethtool -K nic0 gro off", "HOST: COMMAND"),
        ] {
            let error = name(wrong).unwrap_err().to_string();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}
