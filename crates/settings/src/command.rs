//! Formats shell commands for people to copy.

/// Quotes a word for a shell. A device may be named `$(reboot)`.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.-@:/+,=%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Returns a command that runs in the namespace at a path; `None`: the caller's own.
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
