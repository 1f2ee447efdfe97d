//! Durations (`10`, `0.5`, `10s`, `500ms`) and other quantities on the command line.

/// Parses a duration. A number without a unit is in seconds.
///
/// # Errors
/// A sentence that names the expected forms.
pub fn duration(text: &str) -> Result<humantime::Duration, String> {
    // The longest duration that can be added to any clock's time.
    const MOST: f64 = 1e9;
    let wrong =
        || format!("{text:?}: expected seconds, or a number and a unit, such as 10s, 500ms");
    match text.trim().parse::<f64>() {
        Ok(seconds) if (0.0..=MOST).contains(&seconds) => {
            Ok(std::time::Duration::from_secs_f64(seconds).into())
        }
        Ok(_) => Err(wrong()),
        Err(_) => text.trim().parse().map_err(|_| wrong()),
    }
}

/// As [`duration`], in seconds. The caller checks the range of a number without a unit.
///
/// # Errors
/// As [`duration`].
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.trim().parse() {
        Ok(seconds) => Ok(seconds),
        Err(_) => duration(text).map(|duration| duration.as_secs_f64()),
    }
}

/// As [`duration`], in whole seconds.
///
/// # Errors
/// As [`duration`]; also for a part of a second, and for more than `u32::MAX` seconds.
pub fn whole_seconds(text: &str) -> Result<u32, String> {
    let duration = duration(text)?;
    let seconds = u32::try_from(duration.as_secs()).ok();
    seconds
        .filter(|_| duration.subsec_nanos() == 0)
        .ok_or_else(|| format!("{text:?}: expected whole seconds, such as 30, 30s or 5m"))
}

/// Parses a rate in bit/s: `100M`, `1.5G`, `64k`. Prefixes are powers of 1000.
///
/// # Errors
/// A sentence that names the expected form.
pub fn bits_per_s(text: &str) -> Result<u64, String> {
    /// More than any sender reaches.
    const MOST: f64 = 1e13;
    let (number, factor) = match text.strip_suffix(['k', 'K', 'M', 'G', 'T']) {
        Some(number) => (
            number,
            match text.as_bytes().last() {
                Some(b'k' | b'K') => 1e3,
                Some(b'M') => 1e6,
                Some(b'G') => 1e9,
                _ => 1e12,
            },
        ),
        None => (text, 1.0),
    };
    let rate = number.parse::<f64>().ok().map(|number| number * factor);
    match rate.filter(|rate| (1.0..=MOST).contains(rate)) {
        // Within the range of a u64.
        Some(rate) => Ok(rate.round() as u64),
        None => Err(format!("{text:?}: expected a rate in bit/s up to 10T, such as 100M or 1G")),
    }
}

/// Parses a DSCP: a number, `EF`, `AFxy` (RFC 2597) or `CSx` (RFC 2474).
///
/// # Errors
/// A sentence that names the expected forms.
pub fn dscp(text: &str) -> Result<u8, String> {
    let name = text.to_ascii_uppercase();
    let digit = |byte: u8, most: u8| (b'0'..=b'0' + most).contains(&byte).then(|| byte - b'0');
    let named = match name.as_bytes() {
        b"EF" => Some(46),
        [b'C', b'S', class] => digit(*class, 7).map(|class| 8 * class),
        [b'A', b'F', class, drop] => digit(*class, 4)
            .zip(digit(*drop, 3))
            .filter(|(class, drop)| *class > 0 && *drop > 0)
            .map(|(class, drop)| 8 * class + 2 * drop),
        _ => text.parse().ok().filter(|dscp| *dscp <= 63),
    };
    named.ok_or_else(|| format!("{text:?}: expected 0 to 63, EF, AF11 to AF43, or CS0 to CS7"))
}

/// Returns the words to add to an error about an unknown word: the nearest known one, if any is similar.
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or(String::new(), |nearest| format!("; did you mean {nearest:?}?"))
}

/// Returns the word of `known` that is most similar to `word`, if it is similar at all.
fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below it, two words have little in common.
    const SIMILAR: f64 = 0.8;
    let word = word.to_ascii_lowercase();
    let scored = known.into_iter().map(|name| (strsim::jaro_winkler(&word, name), name));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score >= SIMILAR).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_seconds_and_a_unit_counts() {
        for (text, expected) in [
            ("10", 10.0),
            ("0.5", 0.5),
            ("10s", 10.0),
            ("500ms", 0.5),
            ("1m 30s", 90.0),
            ("0", 0.0),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
            assert_eq!(duration(text).unwrap().as_secs_f64(), expected, "{text}");
        }
        for wrong in ["", "-1", "ten", "10 parsecs", "nan", "inf", "1e300"] {
            assert!(duration(wrong).unwrap_err().contains("expected seconds"), "{wrong}");
        }
    }

    #[test]
    fn whole_seconds_have_no_part_of_one() {
        for (text, expected) in [("300", 300), ("300s", 300), ("5m", 300), ("0", 0)] {
            assert_eq!(whole_seconds(text), Ok(expected), "{text}");
        }
        for wrong in ["0.5", "500ms", "1e9s", "200years"] {
            assert!(whole_seconds(wrong).unwrap_err().contains("expected"), "{wrong}");
        }
    }

    #[test]
    fn a_dscp_is_a_number_or_a_name() {
        for (text, expected) in [
            ("0", 0),
            ("63", 63),
            ("EF", 46),
            ("ef", 46),
            ("AF11", 10),
            ("AF43", 38),
            ("CS1", 8),
            ("CS7", 56),
        ] {
            assert_eq!(dscp(text), Ok(expected), "{text}");
        }
        for wrong in ["", "64", "-1", "AF14", "AF01", "AF50", "CS8", "CS", "BE"] {
            assert!(dscp(wrong).unwrap_err().contains("expected 0 to 63"), "{wrong}");
        }
    }

    #[test]
    fn rates_have_decimal_prefixes() {
        for (text, expected) in [
            ("100M", 100_000_000),
            ("1.5G", 1_500_000_000),
            ("64k", 64_000),
            ("64K", 64_000),
            ("9", 9),
        ] {
            assert_eq!(bits_per_s(text), Ok(expected), "{text}");
        }
        for wrong in ["", "M", "0", "-1M", "1e99", "nan", "1m", "100Mb", "11T"] {
            assert!(bits_per_s(wrong).unwrap_err().contains("expected a rate"), "{wrong}");
        }
    }

    #[test]
    fn the_nearest_word_is_similar_or_none() {
        let known = ["host", "vxlan", "bridge", "vxlan+accel"];
        assert_eq!(nearest("vxlam", known), Some("vxlan"));
        assert_eq!(nearest("birdge", known), Some("bridge"));
        assert_eq!(nearest("VXLAN", known), Some("vxlan"));
        assert_eq!(nearest("zzz", known), None);
    }
}
