//! Parser for `--vary` and `--try` of `lab run`.

use std::fmt;

use lab::guest::GuestSetting;
use testbed::Setting;

use crate::usage::usage;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Varied {
    /// A setting of test hosts, applied and restored between samples.
    Hosts(Setting),
    /// A start option of guests. Each value has its own testbed.
    Guests(GuestSetting),
    /// Ends that use IPv6. It has its own testbed.
    Ipv6,
}

impl fmt::Display for Varied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Varied::Hosts(setting) => setting.fmt(f),
            Varied::Guests(setting) => setting.fmt(f),
            Varied::Ipv6 => f.write_str(IPV6),
        }
    }
}

/// Name of the setting of ends that use IPv6.
const IPV6: &str = "ip=6";

/// Parses `--vary`. Returns one setting per value.
///
/// # Errors
/// Wrong usage.
pub fn varied(text: &str) -> anyhow::Result<Vec<Varied>> {
    if let Some(version) = text.trim().strip_prefix("ip=") {
        return match version {
            "6" => Ok(vec![Varied::Ipv6]),
            // IPv4 is the value as found.
            _ => Err(usage("--vary", format!("ip={version}: expected ip=6"))),
        };
    }
    // If any part of a sum is a guest setting, the guest parser checks which parts can be combined.
    if text.split('+').any(GuestSetting::is_named) {
        let settings = GuestSetting::parse_list(text).map_err(|error| usage("--vary", error))?;
        return Ok(settings.into_iter().map(Varied::Guests).collect());
    }
    let settings = Setting::parse_list(text).map_err(|error| usage("--vary", error))?;
    Ok(settings.into_iter().map(Varied::Hosts).collect())
}

/// Parses `--try`: one setting, `offload:PROFILE`, or `HOST: COMMAND`.
///
/// # Errors
/// Wrong usage.
pub fn tried(text: &str) -> anyhow::Result<Varied> {
    if GuestSetting::is_named(text) {
        let mut settings = GuestSetting::parse_list(text).map_err(|error| usage("--try", error))?;
        return match settings.len() {
            1 => Ok(Varied::Guests(settings.remove(0))),
            _ => Err(usage("--try", format!("{text:?}: only one value can be tried at a time"))),
        };
    }
    let setting = match text.split_once(':') {
        Some(("offload", profile)) => one(&format!("offload={}", profile.trim())),
        // A prefix with = or a space is not a host name.
        Some((host, command)) if !KINDS.contains(&host) && !host.contains(['=', ' ']) => {
            Setting::of_host(host, command).map_err(|error| usage("--try", error))
        }
        _ => one(text),
    };
    setting.map(Varied::Hosts)
}

/// Prefixes of named settings before the colon. No test host has such a name.
const KINDS: [&str; 4] = ["sysctl", "feature", "coalesce", "sysfs"];

fn one(text: &str) -> anyhow::Result<Setting> {
    match Setting::parse_list(text) {
        Ok(mut settings) if settings.len() == 1 => Ok(settings.remove(0)),
        Ok(_) => Err(usage("--try", format!("{text:?}: only one value can be tried at a time"))),
        Err(error) => {
            let command = "or HOST: COMMAND, such as 'a: ethtool -K nic0 gro off'";
            Err(usage("--try", format!("{error}; {command}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_is_a_setting_of_its_own() {
        let names = |text: &str| {
            varied(text).map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(names("ip=6").unwrap(), ["ip=6"]);
        for wrong in ["ip=4", "ip=4,6", "ip="] {
            assert!(names(wrong).unwrap_err().to_string().contains("expected ip=6"), "{wrong}");
        }
    }

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
            ("tap:x=1", "allowed: vm:cpus"),
            ("offload:some", "known: full"),
            ("ring=1,2", "one value"),
            ("ethtool -K nic0 gro off", "HOST: COMMAND"),
        ] {
            let error = name(wrong).unwrap_err().to_string();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}
