//! Message sizes: `64`, `64,1400`, `1:4096:*2`, `64:1024:+64`.

use load::MAX_MESSAGE_BYTES;

/// Maximum number of sizes. More are likely a mistake in a range.
const MOST: usize = 256;

/// Parses a list of sizes and ranges, in bytes.
///
/// # Errors
/// A description of the problem and of the allowed values.
pub fn parse(text: &str) -> Result<Vec<u32>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.split(':').collect::<Vec<_>>()[..] {
            [one] => sizes.push(size(one)?),
            [from, to, step] => range(&mut sizes, size(from)?, size(to)?, step, part)?,
            _ => {
                return Err(format!(
                    "{part:?} is neither SIZE nor FROM:TO:*FACTOR nor FROM:TO:+STEP"
                ));
            }
        }
        // Each size is a cell of its own, and multiplies the time of a run.
        if sizes.len() > MOST {
            return Err(format!("{text:?} gives more than {MOST} sizes"));
        }
    }
    sizes.sort_unstable();
    // Ranges and single sizes may overlap.
    sizes.dedup();
    Ok(sizes)
}

fn size(text: &str) -> Result<u32, String> {
    let allowed = || format!("size {text:?}: expected 1 to {MAX_MESSAGE_BYTES} bytes");
    let size: u32 = text.trim().parse().map_err(|_| allowed())?;
    if (1..=MAX_MESSAGE_BYTES).contains(&size) { Ok(size) } else { Err(allowed()) }
}

fn range(sizes: &mut Vec<u32>, from: u32, to: u32, step: &str, part: &str) -> Result<(), String> {
    if to < from {
        return Err(format!("range {part:?} ends before it begins"));
    }
    let amount = |digits: &str, least: u32| {
        digits.parse::<u32>().ok().filter(|n| *n >= least).ok_or_else(|| {
            format!(
                "range {part:?}: step {step:?} must be *FACTOR (2 or more) or +STEP (1 or more)"
            )
        })
    };
    let next: Box<dyn Fn(u32) -> Option<u32>> = match step.split_at_checked(1) {
        Some(("*", factor)) => {
            let factor = amount(factor, 2)?;
            Box::new(move |size| size.checked_mul(factor))
        }
        Some(("+", step)) => {
            let step = amount(step, 1)?;
            Box::new(move |size| size.checked_add(step))
        }
        _ => return Err(amount("", 1).unwrap_err()),
    };
    let mut size = Some(from);
    while let Some(now) = size.filter(|now| *now <= to) {
        // A large range ends here; its length is refused by the caller.
        if sizes.len() > MOST {
            break;
        }
        sizes.push(now);
        size = next(now);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        assert_eq!(parse("64").unwrap(), [64]);
        assert_eq!(parse("1400,64,64").unwrap(), [64, 1400]);
        assert_eq!(parse("1:16:*2").unwrap(), [1, 2, 4, 8, 16]);
        assert_eq!(parse("64:256:+64,1").unwrap(), [1, 64, 128, 192, 256]);
        assert_eq!(parse("65507").unwrap(), [65507]);
    }

    #[test]
    fn problems_are_named() {
        for bad in [
            "0",
            "65508",
            "",
            "x",
            "1:2",
            "4:1:*2",
            "1:4:*1",
            "1:4:+0",
            "1:4:2",
            "1:4:*",
            "-1",
            "1:60000:+1",
        ] {
            let error = parse(bad).unwrap_err();
            assert!(!error.is_empty(), "{bad}");
        }
        assert!(parse("0").unwrap_err().contains("1 to 65507"));
    }
}
