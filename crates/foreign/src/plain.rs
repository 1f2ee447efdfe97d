//! Escapes characters that change how the text around them is shown.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

/// Foreign text as a part of one line. Characters that drive a terminal, end the line, turn the
/// direction of writing, or cannot be seen are shown as escapes (`\x1b`, `\n`, `\u{202e}`). All
/// other text stays unchanged, including backslashes, so the result cannot be decoded again.
///
/// ```
/// assert_eq!(foreign::Plain("nic0\x1b[31m").to_string(), "nic0\\x1b[31m");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Plain<'a>(pub &'a str);

impl Display for Plain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The formatter handles width and precision.
        out.pad(&plain(self.0))
    }
}

/// Like [`Plain`], as a string.
pub fn plain(text: &str) -> Cow<'_, str> {
    replaced(text, |_, c| is_harmful(c))
}

/// Returns whether an unescaped character could change how a reader sees the text around it.
///
/// These are the control characters (C0, DEL, C1), and Unicode characters that set the writing
/// direction (UAX #9), separate lines, have no width, or annotate (`Default_Ignorable_Code_Point`
/// of DerivedCoreProperties.txt, and U+FFF9 to U+FFFB).
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes a whole text before it is written. Line ends and tabs stay. With `colour`, sequences
/// that set colours and bold (SGR of ECMA-48) stay too: a program that prints in colour must escape
/// foreign parts with [`Plain`].
pub fn lines(text: &str, colour: bool) -> Cow<'_, str> {
    let ours = |at: usize, c: char| match c {
        '\n' | '\t' => true,
        '\x1b' => colour && is_colour(&text[at + 1..]),
        // Other control characters could move the cursor or change the display.
        _ => false,
    };
    replaced(text, |at, c| is_harmful(c) && !ours(at, c))
}

/// Escapes one log entry before it is written: like [`lines()`], but without line ends inside,
/// which could look like a separate entry.
pub fn log(text: &str, colour: bool) -> Cow<'_, str> {
    let end = text.trim_end_matches('\n').len();
    let ours = |at: usize, c: char| match c {
        // Only the line end of the entry itself stays.
        '\n' => at >= end,
        '\x1b' => colour && is_colour(&text[at + 1..]),
        // Other control characters could move the cursor or change the display.
        _ => false,
    };
    replaced(text, |at, c| is_harmful(c) && !ours(at, c))
}

/// Returns whether the text after an escape character is a colour sequence such as `[1;31m`.
fn is_colour(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('[') else { return false };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';');
    end.is_some_and(|end| rest[end..].starts_with('m'))
}

fn replaced(text: &str, harmful: impl Fn(usize, char) -> bool) -> Cow<'_, str> {
    // Usually there is nothing to replace, so nothing is copied.
    let Some(first) = text.char_indices().position(|(at, c)| harmful(at, c)) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + 16);
    for (number, (at, c)) in text.char_indices().enumerate() {
        if number < first || !harmful(at, c) {
            out.push(c);
            continue;
        }
        // Writing to a String cannot fail.
        let _ = match c {
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c)),
            c => write!(out, "\\u{{{:x}}}", u32::from(c)),
        };
    }
    Cow::Owned(out)
}

/// Escapes JSON before it is written, without changing its value: such characters, except those of
/// the structure itself, occur only in strings, where an escape has the same meaning.
pub fn json(text: &str) -> Cow<'_, str> {
    let stays = |c: char| !is_harmful(c) || matches!(c, '\n' | '\t' | '\r');
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if stays(c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn characters_that_change_the_text_around_them_are_escaped() {
        for (raw, shown) in [
            ("nic0", "nic0"),
            ("a\x1b[31mb", "a\\x1b[31mb"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\x7f\u{9b}2J", "\\x7f\\u{9b}2J"),
            ("user\u{202e}txt", "user\\u{202e}txt"),
            ("\u{2066}\u{200b}\u{feff}\u{2028}", "\\u{2066}\\u{200b}\\u{feff}\\u{2028}"),
            ("\u{e0041}", "\\u{e0041}"),
            ("Zürich 東京 µs – ≈ █", "Zürich 東京 µs – ≈ █"),
            ("C:\\x1b", "C:\\x1b"),
        ] {
            assert_eq!(Plain(raw).to_string(), shown);
        }
        assert_eq!(format!("{:>8}|", Plain("\x1b")), "    \\x1b|");
    }

    #[test]
    fn our_own_lines_and_colours_stay() {
        let ours = "\x1b[1mhead\x1b[0m\n\tbody\n";
        assert_eq!(lines(ours, true), ours);
        assert_eq!(lines(ours, false), "\\x1b[1mhead\\x1b[0m\n\tbody\n");
        // Neither cursor movement, nor a title, nor a single carriage return.
        assert_eq!(lines("\x1b[2J\x1b]0;x\x07\ra\x1b[", true), "\\x1b[2J\\x1b]0;x\\x07\\ra\\x1b[");
        assert_eq!(log("one\ntwo\n", false), "one\\ntwo\n");
    }

    #[test]
    fn json_means_the_same() {
        assert_eq!(
            json("{\"a\": \"\u{202e}\u{9b}\u{e0041}é\"}\n"),
            "{\"a\": \"\\u202e\\u009b\\udb40\\udc41é\"}\n"
        );
    }

    proptest! {
        #[test]
        fn nothing_harmful_is_left(text in any::<String>()) {
            prop_assert!(!plain(&text).chars().any(is_harmful));
            let left = |c: char| is_harmful(c) && !matches!(c, '\n' | '\t' | '\r');
            prop_assert!(!lines(&text, false).chars().any(left));
            prop_assert!(!json(&text).chars().any(left));
            prop_assert!(!log(&text, false).trim_end_matches('\n').chars().any(is_harmful));
        }

        #[test]
        fn harmless_text_stays(text in "[a-zA-Z0-9 .,:/\\\\é-]*") {
            prop_assert!(plain(&text) == text.as_str());
        }
    }
}
