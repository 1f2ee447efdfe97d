//! Samples that do not count.

use results::Sample;

/// Returns a sample that does not count, with the reason.
pub(crate) fn void(reason: String) -> Sample {
    Sample { invalid_reason: Some(reason), ..Sample::default() }
}
