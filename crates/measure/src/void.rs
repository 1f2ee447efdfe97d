//! Samples that do not count.

use results::Sample;

/// A sample that does not count, for `reason`.
pub(crate) fn void(reason: String) -> Sample {
    Sample { invalid_reason: Some(reason), ..Sample::default() }
}
