//! Samples without information about a path.

use serde_json::Value;

/// Whether nothing was sent in a sample: in software emulation a guest's threads may get no CPU
/// time for that long.
pub fn is_silent(sample: &Value) -> bool {
    let reason = sample["invalid_reason"].as_str();
    sample["units"] == 0 && reason.is_some_and(|reason| reason.starts_with("nothing was sent"))
}
