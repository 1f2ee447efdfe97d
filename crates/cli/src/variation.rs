//! What `--vary` and `--try` of `lab run` say.

use testbed::Setting;

use crate::exit::usage;

/// What `--vary` says: a setting a value.
///
/// # Errors
/// Usage.
pub fn varied(text: &str) -> anyhow::Result<Vec<Setting>> {
    Setting::parse_list(text).map_err(|error| usage("--vary", error))
}

/// What `--try` says: one setting, `offload:PROFILE`, or `HOST: COMMAND`.
///
/// # Errors
/// Usage.
pub fn tried(text: &str) -> anyhow::Result<Setting> {
    match text.split_once(':') {
        Some(("offload", profile)) => one(&format!("offload={}", profile.trim())),
        Some((host, command)) if !KINDS.contains(&host) && !host.contains(['=', ' ']) => {
            Setting::of_host(host, command).map_err(|error| usage("--try", error))
        }
        _ => one(text),
    }
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
