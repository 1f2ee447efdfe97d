//! Commands for people to copy.

/// A word of a shell command: a device may be called `$(reboot)`.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-@:/+,=%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// A command that is to run in the namespace that a path opens; `None`: the
/// caller's own.
pub fn inside(path: Option<&str>, command: &str) -> String {
    match path {
        Some(path) => format!("nsenter --net={} {command}", quote(path)),
        None => command.to_owned(),
    }
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
