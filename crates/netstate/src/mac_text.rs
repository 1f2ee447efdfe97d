//! Serializes hardware addresses as text, `02:00:00:00:00:01`.

use packet::ethernet::MacAddr;
use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(
    mac: &Option<MacAddr>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    match mac {
        Some(mac) => serializer.collect_str(mac),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<MacAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}
