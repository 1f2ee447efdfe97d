//! Splits commands into words, if a shell would do nothing else with them.

/// A word or an output redirection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// A word, without its quotes.
    Plain(String),
    /// `> FILE`.
    To(String),
}

impl Word {
    /// Joins words to a line, for messages.
    pub(crate) fn line(words: &[Word]) -> String {
        let word = |word: &Word| match word {
            Word::Plain(word) => word.clone(),
            Word::To(file) => format!("> {file}"),
        };
        words.iter().map(word).collect::<Vec<_>>().join(" ")
    }
}

/// Splits a command into words.
///
/// # Errors
/// The command, if a shell would do more than split it: expand, join commands, read a file.
pub(crate) fn words(command: &str) -> Result<Vec<Word>, String> {
    let more = || command.to_owned();
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut to = false;
    let mut rest = command.chars();
    let mut end = |word: &mut Option<String>, to: &mut bool| {
        if let Some(word) = word.take() {
            words.push(if std::mem::take(to) { Word::To(word) } else { Word::Plain(word) });
        }
    };
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' => end(&mut word, &mut to),
            '\'' => {
                let part = word.get_or_insert_default();
                loop {
                    match rest.next().ok_or_else(more)? {
                        '\'' => break,
                        c => part.push(c),
                    }
                }
            }
            '"' => {
                let part = word.get_or_insert_default();
                loop {
                    match rest.next().ok_or_else(more)? {
                        '"' => break,
                        // A shell expands these within double quotes, too.
                        '$' | '`' | '\\' => return Err(more()),
                        c => part.push(c),
                    }
                }
            }
            // Directly after a word it may redirect another descriptor (`2>`).
            '>' if !to && word.is_none() => to = true,
            c if c.is_control() || "$`\\;|&<>*?[](){}~#!".contains(c) => return Err(more()),
            c => word.get_or_insert_default().push(c),
        }
    }
    end(&mut word, &mut to);
    // A `>` without a file.
    if to { Err(more()) } else { Ok(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_a_shell() {
        let plain = |text: &str| Word::Plain(text.to_owned());
        assert_eq!(
            words("sysctl  -w 'net.ipv4.tcp_rmem=4096 1 2'\t\"a b\"c").unwrap(),
            [plain("sysctl"), plain("-w"), plain("net.ipv4.tcp_rmem=4096 1 2"), plain("a bc")]
        );
        let file = Word::To("/sys/x".to_owned());
        assert_eq!(words("echo 3 > /sys/x").unwrap(), [plain("echo"), plain("3"), file.clone()]);
        assert_eq!(words("echo '' >/sys/x").unwrap(), [plain("echo"), plain(""), file]);
        assert_eq!(words("").unwrap(), []);
    }

    #[test]
    fn words_that_a_shell_would_expand_are_refused() {
        for command in
            ["a; b", "a && b", "a | b", "a $b", "a `b`", "a \"$b\"", "a *", "a 'b", "a >", "a\nb"]
        {
            assert_eq!(words(command), Err(command.to_owned()));
        }
    }
}
