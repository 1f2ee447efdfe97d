//! Messages as JSON, one value per frame.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Parses a message from a frame's payload.
///
/// # Errors
/// If it is not valid JSON of this type, with the position.
pub fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(payload)
}

/// Encodes a message as a frame's payload.
pub fn emit(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages are plain data with string keys")
}
