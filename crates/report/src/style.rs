//! How text may look.

/// How text may look: the caller knows the terminal, this crate does not ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// ANSI colours and bold.
    pub colour: bool,
    /// Columns. Below 72 is treated as 72: no table fits less.
    pub width: usize,
}

impl Style {
    /// Columns that text is wrapped to: `width`, at least 72.
    pub(crate) fn columns(self) -> usize {
        self.width.max(72)
    }

    /// Text of a heading: bold, where colour is wanted.
    pub(crate) fn bold(self, text: &str) -> String {
        if self.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_string() }
    }

    /// What is there to be looked up, not read.
    pub(crate) fn dim(self, text: &str) -> String {
        if self.colour { format!("\x1b[2m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// Text from a results file, without what could drive a terminal or break a line: such
/// characters are shown (see [`foreign::Plain`]).
pub(crate) fn plain(text: &str) -> String {
    foreign::plain(text).into_owned()
}

/// Longest name, characters.
const NAME: usize = 128;

/// A name in a file that anybody may have written, as [`plain`] shows it, and not too long.
pub(crate) fn named(text: &str) -> String {
    plain(text).chars().take(NAME).collect()
}

/// Breaks `text` between words into lines of at most `width` columns; the first
/// begins with `first`, the others with as many spaces. A word longer than a
/// line keeps its line to itself.
pub(crate) fn wrap(first: &str, text: &str, width: usize) -> Vec<String> {
    let indent = first.chars().count();
    let mut lines = Vec::new();
    let mut line = first.to_string();
    let mut empty = true;
    for word in text.split_whitespace() {
        let needed = line.chars().count() + usize::from(!empty) + word.chars().count();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_within_the_width() {
        let lines = wrap("  - ", "one two three four five", 12);
        assert_eq!(lines, ["  - one two", "    three", "    four", "    five"]);
        assert_eq!(wrap("", "", 10), [""]);
        assert_eq!(wrap("", "unbreakable word", 5), ["unbreakable", "word"]);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("a\x1b[31mb\nc\u{9b}d"), "a\\x1b[31mb\\nc\\u{9b}d");
    }
}
