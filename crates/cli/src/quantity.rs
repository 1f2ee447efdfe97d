//! Durations on the command line: `10`, `0.5`, `10s`, `500ms`.

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

/// Returns the word of `known` that is most similar to `word`, if it is similar at all.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below it, two words have little in common.
    const SIMILAR: f64 = 0.8;
    let scored = known.into_iter().map(|name| (strsim::jaro_winkler(word, name), name));
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
    fn the_nearest_word_is_similar_or_none() {
        let known = ["host", "vxlan", "bridge", "vxlan+accel"];
        assert_eq!(nearest("vxlam", known), Some("vxlan"));
        assert_eq!(nearest("birdge", known), Some("bridge"));
        assert_eq!(nearest("zzz", known), None);
    }
}
