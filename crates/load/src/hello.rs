//! The first exchange of a flow. It proves that the path carries data both ways, identifies the
//! flow of a connection or source address, and warms up ARP, FDB and conntrack. The same exchange
//! at the end proves that the path still works.
//!
//! A hello is 24 bytes: magic, kind, load token, flow, and the length of the datagram that
//! carries it. Addresses cannot identify flows: NAT and proxies change them.

use std::net::{IpAddr, SocketAddr};

use super::flow::Flow;

/// Length of a hello, bytes. Over UDP a request is padded to the message size.
pub(super) const HELLO_BYTES: usize = 24;

const MAGIC: [u8; 4] = *b"ovl\x01";

/// Kind of a hello: byte 4 of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Sent by the client.
    Ask = 1,
    /// Sent by the server, in reply.
    Answer = 2,
}

/// Message that proves a flow's path before and after the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub kind: Kind,
    /// Load that it belongs to. Rejects late datagrams of an earlier load.
    pub token: u64,
    pub flow: u32,
    /// Length of the requesting datagram, repeated in the answer.
    pub length: u32,
}

impl Hello {
    pub fn emit(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.token.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.flow.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Parses a hello at the start of a datagram; `None` if there is none.
    pub fn parse(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; HELLO_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let kind = match bytes[4] {
            1 => Kind::Ask,
            2 => Kind::Answer,
            // Other values belong to no message of this version.
            _ => return None,
        };
        (bytes[..4] == MAGIC && bytes[5..8] == [0; 3]).then(|| Hello {
            kind,
            token: u64::from(word(8)) | u64::from(word(12)) << 32,
            flow: word(16),
            length: word(20),
        })
    }

    /// Parses a request for a flow of this load.
    pub fn asked(bytes: &[u8], token: u64, flows: u32) -> Option<Hello> {
        Hello::parse(bytes).filter(|h| h.kind == Kind::Ask && h.token == token && h.flow < flows)
    }

    pub fn answer(&self) -> Hello {
        Hello { kind: Kind::Answer, ..*self }
    }
}

/// Returns whether a server for `peer` answers `from`. Without a peer it answers every client
/// with the load's token.
pub(super) fn serves(peer: Option<IpAddr>, from: SocketAddr) -> bool {
    peer.is_none_or(|peer| peer.to_canonical() == from.ip().to_canonical())
}

impl Flow<'_> {
    /// Returns this flow's request in a datagram of `length` bytes.
    pub fn ask(&self, length: usize) -> Hello {
        // The length is at most MAX_MESSAGE_BYTES, so it fits.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Hello { kind: Kind::Ask, token: self.token, flow: self.index, length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HELLO: Hello =
        Hello { kind: Kind::Ask, token: 0x1122_3344_5566_7788, flow: 3, length: 65507 };

    #[test]
    fn a_hello_of_another_load_or_of_no_flow_is_not_taken() {
        let bytes = HELLO.emit();
        assert_eq!(Hello::asked(&bytes, HELLO.token, 4), Some(HELLO));
        assert_eq!(Hello::asked(&bytes, HELLO.token + 1, 4), None);
        assert_eq!(Hello::asked(&bytes, HELLO.token, 3), None);
        assert_eq!(Hello::asked(&HELLO.answer().emit(), HELLO.token, 4), None);
    }

    #[test]
    fn payload_is_no_hello() {
        assert_eq!(Hello::parse(&[0; 65507]), None);
        assert_eq!(Hello::parse(&HELLO.emit()[..HELLO_BYTES - 1]), None);
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(token: u64, flow: u32, length: u32, answer: bool) {
            let kind = if answer { Kind::Answer } else { Kind::Ask };
            let hello = Hello { kind, token, flow, length };
            prop_assert_eq!(Hello::parse(&hello.emit()), Some(hello));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: Vec<u8>) {
            if let Some(hello) = Hello::parse(&bytes) {
                prop_assert_eq!(&hello.emit()[..], &bytes[..HELLO_BYTES]);
            }
        }
    }
}
