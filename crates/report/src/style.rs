//! Formatting options of text.

/// Formatting options. The caller examines the terminal; this crate does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// ANSI colours and bold.
    pub colour: bool,
    /// Columns. Values below 60 count as 60, because no table fits into less.
    pub width: usize,
}

impl Style {
    /// Columns that text is wrapped to: `width`, at least 60.
    pub(crate) fn columns(self) -> usize {
        self.width.max(60)
    }

    /// Formats a heading, in bold if colour is on.
    pub(crate) fn bold(self, text: &str) -> String {
        if self.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_string() }
    }

    /// Formats reference text, dimmed if colour is on.
    pub(crate) fn dim(self, text: &str) -> String {
        if self.colour { format!("\x1b[2m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// Returns text from a results file with escaped control characters and line breaks (see
/// [`foreign::Plain`]).
pub(crate) fn plain(text: &str) -> String {
    foreign::plain(text).into_owned()
}

/// Longest name, characters.
const NAME: usize = 128;

/// Returns a name from an untrusted file, escaped as by [`plain`] and shortened.
pub(crate) fn named(text: &str) -> String {
    plain(text).chars().take(NAME).collect()
}

/// Breaks `text` between words into lines of at most `width` columns. The first line begins with
/// `first`, the other lines with as many spaces. A word longer than a line, such as a list of flags,
/// breaks after `|`; without one, it gets its own line.
pub(crate) fn wrap(first: &str, text: &str, width: usize) -> Vec<String> {
    let indent = first.chars().count();
    let mut lines = Vec::new();
    let mut line = first.to_string();
    let mut empty = true;
    for word in
        text.split_whitespace().flat_map(|word| fragments(word, width.saturating_sub(indent)))
    {
        let needed = line.chars().count() + usize::from(!empty) + word.chars().count();
        // A word longer than the line still gets a line.
        if !empty && needed > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
    lines
}

/// Divides a word after `|` into fragments of at most `most` characters, if it is longer.
fn fragments(word: &str, most: usize) -> Vec<&str> {
    let mut fragments = Vec::new();
    let mut rest = word;
    while rest.chars().count() > most {
        let flags = rest.match_indices('|').map(|(at, _)| at + 1);
        let fits = flags.take_while(|end| rest[..*end].chars().count() <= most);
        let Some(end) = fits.last() else { break };
        let (fragment, after) = rest.split_at(end);
        fragments.push(fragment);
        rest = after;
    }
    fragments.push(rest);
    fragments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_within_the_width() {
        let lines = wrap("  - ", "one two three four five", 12);
        assert_eq!(lines, ["  - one two", "    three", "    four", "    five"]);
        assert_eq!(wrap("", "", 10), [""]);
        assert_eq!(wrap("", "unbreakable word", 5), ["unbreakable", "word"]);
        assert_eq!(wrap("- ", "in TSO4|TSO6|CSUM;", 12), ["- in", "  TSO4|TSO6|", "  CSUM;"]);
        assert_eq!(wrap("", "TSO4|TSO6", 9), ["TSO4|TSO6"]);
        assert_eq!(wrap("", "TUNNEL|TSO6", 4), ["TUNNEL|TSO6"]);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("a\x1b[31mb\nc\u{9b}d"), "a\\x1b[31mb\\nc\\u{9b}d");
    }
}
