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

/// Returns the words to add to an error about an unknown word: the similar known ones,
/// and all of them or the command that lists them.
pub fn alternatives<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
    lister: &str,
) -> String {
    /// More names than this are no help in an error.
    const FEW: usize = 12;
    let known: Vec<&str> = known.into_iter().collect();
    let similar: Vec<String> =
        similar(word, &known).iter().map(|name| format!("{name:?}")).collect();
    let meant = match similar.split_last() {
        None => ";".to_owned(),
        Some((only, [])) => format!("; did you mean {only}?"),
        Some((last, others)) => format!("; did you mean {} or {last}?", others.join(", ")),
    };
    match known.len() {
        ..=FEW => format!("{meant} known: {}", known.join(", ")),
        _ => format!("{meant} `{lister}` lists all"),
    }
}

/// Returns the words of `known` that are similar to `word`, at most three, the most similar first.
fn similar<'a>(word: &str, known: &[&'a str]) -> Vec<&'a str> {
    /// Below it, two words have little in common.
    const SIMILAR: f64 = 0.8;
    /// A word that is so much less similar than another is not the one.
    const BEHIND: f64 = 0.06;
    const MOST: usize = 3;
    let word = word.to_ascii_lowercase();
    let mut scored: Vec<_> =
        known.iter().map(|name| (strsim::jaro_winkler(&word, name), *name)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = scored.first().map_or(0.0, |(score, _)| *score);
    let near = scored.into_iter().filter(|(score, _)| *score >= SIMILAR.max(best - BEHIND));
    near.map(|(_, name)| name).take(MOST).collect()
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
    fn similar_words_are_few_and_the_most_similar_is_first() {
        let known = ["host", "vxlan", "bridge", "vxlan+accel", "vxlan6"];
        assert_eq!(similar("vxlam", &known)[0], "vxlan");
        assert_eq!(similar("birdge", &known), ["bridge"]);
        assert_eq!(similar("VXLAN", &known)[0], "vxlan");
        assert!(similar("zzz", &known).is_empty());
        let many: Vec<String> = (0..20).map(|n| format!("vxlan{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(similar("vxlan", &many).len(), 3);
    }

    #[test]
    fn an_error_lists_all_words_only_if_they_are_few() {
        let few = ["host", "vxlan"];
        let with = |word, known: &[&str]| alternatives(word, known.iter().copied(), "overlane x");
        assert_eq!(with("vxlam", &few), "; did you mean \"vxlan\"? known: host, vxlan");
        assert_eq!(with("zzz", &few), "; known: host, vxlan");
        let many: Vec<String> = (0..20).map(|n| format!("mode{n:02}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(with("zzz", &many), "; `overlane x` lists all");
        let meant = with("mode0", &many);
        assert!(meant.starts_with("; did you mean \"mode0"), "{meant}");
        assert!(meant.len() < 80, "{meant}");
    }
}
