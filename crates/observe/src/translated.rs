//! Translated (NAT) forms of wanted flows, from conntrack: those of connections that the programs
//! have not seen being translated (`bpf/translated.h`).

use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netstate::connection::{Tuple, connections};
use netstate::conntrack::NF_CONNTRACK_COUNT;
use sys::netns::NetNs;

use crate::filter::{FlowPattern, mapped};

/// Sizes of `struct ends` and of a value in `noted`.
pub(crate) const ENDS_BYTES: usize = 40;
/// Number of elements of `noted`.
const HASHES: u16 = 4096;
/// Limit of connections that are added at each reading: conntrack may have millions.
const MOST: usize = 2048;

/// The programs' maps of translated flows.
pub(crate) struct Translations {
    pub translated: MapHandle,
    pub noted: MapHandle,
}

impl Translations {
    /// Adds the translated connections of a namespace that belong to a wanted flow. If conntrack
    /// cannot be read, it adds nothing: the kernel does not have it.
    pub fn add_of(&self, netns: &NetNs, wanted: &[FlowPattern]) -> Result<(), libbpf_rs::Error> {
        let read = netns.run(|| {
            let mut found = Vec::new();
            // A dump walks all buckets of one table for all namespaces, which takes tens of ms.
            // Skip it if there are no entries.
            if is_without_connections() {
                return Ok(found);
            }
            connections(|entry| {
                if found.len() < MOST {
                    found.extend(translated_form([entry.original, entry.reply.reversed()], wanted));
                }
            })
            .map(|()| found)
        });
        let Ok(Ok(found)) = read else { return Ok(()) };
        for tuple in found.into_iter().flat_map(|tuple| [tuple, tuple.reversed()]) {
            self.translated.update(&ends(&tuple), &1_u32.to_ne_bytes(), MapFlags::ANY)?;
            self.noted.update(&u32::from(hash(&tuple)).to_ne_bytes(), &[1], MapFlags::ANY)?;
        }
        Ok(())
    }
}

/// Returns the form of a connection that no pattern matches, if the other form is wanted: before and
/// behind the translation.
fn translated_form(forms: [Tuple; 2], wanted: &[FlowPattern]) -> Option<Tuple> {
    let is_wanted = |form: &Tuple| {
        wanted.iter().any(|flow| flow.is_of(form.source, form.destination, form.protocol))
    };
    match forms.map(|form| is_wanted(&form)) {
        [true, false] => Some(forms[1]),
        [false, true] => Some(forms[0]),
        _ => None,
    }
}

/// Returns `struct ends` of a direction.
fn ends(tuple: &Tuple) -> [u8; ENDS_BYTES] {
    let mut bytes = [0; ENDS_BYTES];
    let ((source, source_port), (destination, destination_port)) =
        (tuple.source, tuple.destination);
    bytes[..16].copy_from_slice(&mapped(source).octets());
    bytes[16..32].copy_from_slice(&mapped(destination).octets());
    bytes[32..34].copy_from_slice(&source_port.to_be_bytes());
    bytes[34..36].copy_from_slice(&destination_port.to_be_bytes());
    bytes[36..].copy_from_slice(&u32::from(tuple.protocol).to_ne_bytes());
    bytes
}

/// `hash_of` of the C source.
fn hash(tuple: &Tuple) -> u16 {
    let last = |address: IpAddr| mapped(address).segments()[7];
    let ends = [tuple.source, tuple.destination];
    ends.iter().fold(0, |hash, (address, port)| hash ^ last(*address) ^ port) % HASHES
}

/// Returns whether conntrack has no entries in the calling thread's namespace.
fn is_without_connections() -> bool {
    std::fs::read_to_string(NF_CONNTRACK_COUNT).is_ok_and(|count| count.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(source: &str, destination: &str) -> Tuple {
        let end = |text: &str| {
            let end: std::net::SocketAddr = text.parse().unwrap();
            (end.ip(), end.port())
        };
        Tuple { source: end(source), destination: end(destination), protocol: 6 }
    }

    /// The service is 10.96.0.1:80, its backend 10.244.2.9:8080.
    #[test]
    fn the_form_behind_the_translation_is_added() {
        let asked = tuple("10.244.1.5:40000", "10.96.0.1:80");
        let behind = tuple("10.244.1.5:40000", "10.244.2.9:8080");
        for (pattern, expected) in [
            ("10.96.0.1:80/tcp", Some(behind)),
            ("10.244.2.9", Some(asked)),
            // Both forms match already.
            ("10.244.1.5", None),
            ("192.0.2.1", None),
        ] {
            let wanted = [pattern.parse().unwrap()];
            assert_eq!(translated_form([asked, behind], &wanted), expected, "{pattern}");
        }
    }

    #[test]
    fn both_directions_have_one_hash() {
        for (source, destination) in
            [("10.244.1.5:40000", "10.96.0.1:80"), ("[fd00::1]:9", "[fd00::2:f]:65535")]
        {
            let tuple = tuple(source, destination);
            assert_eq!(hash(&tuple), hash(&tuple.reversed()));
            assert!(hash(&tuple) < HASHES);
            assert_ne!(ends(&tuple), ends(&tuple.reversed()));
        }
        let bytes = ends(&tuple("10.0.0.1:258", "10.0.0.2:772"));
        assert_eq!(bytes[10..16], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(bytes[32..37], [1, 2, 3, 4, 6]);
    }
}
