//! Lines of a fixed width from untrusted text.

use foreign::plain;
use ratatui::text::Span;

/// Returns the number of columns of a text on a terminal.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Formats untrusted text to exactly `columns`: truncated with a mark, or padded.
pub fn fit(text: &str, columns: usize) -> String {
    let text = plain(text);
    if width(&text) <= columns {
        return format!("{text}{}", " ".repeat(columns - width(&text)));
    }
    let (mut kept, mut taken) = (String::new(), 0);
    for character in text.chars() {
        let wide = width(character.encode_utf8(&mut [0; 4]));
        if taken + wide + 1 > columns {
            break;
        }
        kept.push(character);
        taken += wide;
    }
    if taken < columns {
        kept.push('…');
        taken += 1;
    }
    kept + &" ".repeat(columns - taken)
}

/// Right-aligns trusted text to `columns`, truncated if it is longer.
pub fn right(text: &str, columns: usize) -> String {
    let text: String = text.chars().take(columns).collect();
    format!("{text:>columns$}")
}

/// Wraps untrusted text between words, to lines of at most `columns`.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = vec![String::new()];
    for word in plain(text).split(' ') {
        let line = lines.last().map_or(0, |line| width(line));
        match lines.last_mut() {
            Some(last) if line == 0 => last.push_str(word),
            Some(last) if line + 1 + width(word) <= columns => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_takes_the_columns_that_it_is_given() {
        for (text, columns, shown) in [
            ("eth0", 6, "eth0  "),
            ("eth0", 4, "eth0"),
            ("cni-1234", 4, "cni…"),
            ("cni-1234", 1, "…"),
            ("cni-1234", 0, ""),
            ("網路空間", 8, "網路空間"),
            ("網路空間", 6, "網路… "),
            ("a\x1b[2J", 8, "a\\x1b[2J"),
            ("\u{202e}x", 9, "\\u{202e}x"),
        ] {
            let shown = if width(shown) < columns { fit(shown, columns) } else { shown.into() };
            assert_eq!(fit(text, columns), shown, "{text:?}");
            assert_eq!(width(&fit(text, columns)), columns, "{text:?}");
        }
        assert_eq!(right("12", 4), "  12");
        assert_eq!(right("123456", 4), "1234");
    }

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("longerthanaline x", 4), ["longerthanaline", "x"]);
        assert_eq!(wrap("", 4), [""]);
    }
}
