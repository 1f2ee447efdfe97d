//! Commands for people to copy.

use crate::host::Namespace;

/// A word of a shell command: a device may be called `$(reboot)`.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-@:/+,=%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// A command that is to run in a namespace.
pub fn inside(namespace: &Namespace, command: &str) -> String {
    match &namespace.path {
        Some(path) => format!("nsenter --net={} {command}", quote(path)),
        None => command.to_owned(),
    }
}

/// Sets a sysctl of a namespace.
pub fn sysctl(namespace: &Namespace, path: &str, value: &str) -> String {
    inside(namespace, &format!("sysctl -w {}={}", quote(path), quote(value)))
}

/// Sets a feature of a device.
pub fn feature(namespace: &Namespace, device: &str, feature: &str, on: bool) -> String {
    let state = if on { "on" } else { "off" };
    inside(namespace, &format!("ethtool -K {} {} {state}", quote(device), quote(feature)))
}

/// Sets an attribute of a link.
pub fn link(namespace: &Namespace, device: &str, attribute: &str, value: &str) -> String {
    inside(namespace, &format!("ip link set dev {} {attribute} {}", quote(device), quote(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_shell_would_take_apart_are_quoted() {
        assert_eq!(quote("eth0.12"), "eth0.12");
        assert_eq!(quote("$(reboot)"), "'$(reboot)'");
        assert_eq!(quote("a'b"), "'a'\\''b'");
        assert_eq!(quote(""), "''");
    }
}
