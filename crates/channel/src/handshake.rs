//! The first bytes of a control connection.
//!
//! ```text
//! server → client  hello: magic, version, whether a token is required, nonce
//! client → server  hello, proof
//! server → client  proof
//! ```
//!
//! A hello is 48 bytes: service (8), its version (2, big-endian), flags (2), zeros (4), nonce
//! (32). The first 10 bytes keep their meaning in every later version, so that an end of another
//! version can report it. A proof is the HMAC-SHA256, keyed with the token, of the prover's role
//! (`client` or `server`) and both hellos as sent. Fresh nonces make a recorded proof useless.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::service::Service;
use crate::token::Token;

/// Length of a hello, bytes.
pub const HELLO_BYTES: usize = 48;
/// Length of a proof, a frame's tag and a session's key, bytes.
pub const MAC_BYTES: usize = 32;

const NONCE_BYTES: usize = 32;

/// Flag: this end has a token and expects the other end to prove that it has the same one.
const WITH_TOKEN: u16 = 1;

/// First message of each end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Service served or requested, in this program's version.
    pub service: Service,
    pub with_token: bool,
    /// Random bytes of this session. They prevent the reuse of proofs.
    pub nonce: [u8; NONCE_BYTES],
}

/// Reason why bytes are not a valid hello.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The other end is a different program.
    #[error("unexpected first bytes {got:02x?}: not an overlane of this kind")]
    Magic {
        /// First bytes received, where the protocol's magic is expected.
        got: [u8; 8],
    },
    /// The other end is an overlane with another service.
    #[error("the other end is `{}`, not `{}`", theirs.command(), ours.command())]
    Service {
        /// Service of the other end.
        theirs: Service,
        ours: Service,
    },
    /// The other end uses another protocol version.
    #[error(
        "the other end has protocol version {theirs}, this is version {ours}: use the same overlane"
    )]
    Version {
        /// Protocol version of the other end.
        theirs: u16,
        /// Protocol version of this end.
        ours: u16,
    },
    /// The hello has flags that this version does not know.
    #[error("unknown flags {flags:#06x} in the hello")]
    Flags {
        /// The flags and the bytes reserved after them.
        flags: u16,
    },
}

impl Hello {
    /// Creates a hello of this version with a fresh nonce.
    pub fn fresh(service: Service, with_token: bool) -> Hello {
        Hello { service, with_token, nonce: rand::random() }
    }

    pub fn emit(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&self.service.magic());
        bytes[8..10].copy_from_slice(&self.service.version().to_be_bytes());
        bytes[10..12].copy_from_slice(&u16::from(self.with_token).to_be_bytes());
        bytes[16..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Parses a hello of this service in this program's version.
    ///
    /// # Errors
    /// [`HelloError`], with the received value.
    pub fn parse(bytes: &[u8; HELLO_BYTES], service: Service) -> Result<Hello, HelloError> {
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let (mut magic, mut nonce) = ([0; 8], [0; NONCE_BYTES]);
        magic.copy_from_slice(&bytes[..8]);
        nonce.copy_from_slice(&bytes[16..]);
        match Service::ALL.into_iter().find(|known| known.magic() == magic) {
            // Another program listens on this port.
            None => return Err(HelloError::Magic { got: magic }),
            // Another service of overlane: name it, since the port is probably wrong.
            Some(theirs) if theirs != service => {
                return Err(HelloError::Service { theirs, ours: service });
            }
            Some(_) => {}
        }
        let ours = service.version();
        // Other versions may have other messages.
        if word(8) != ours {
            return Err(HelloError::Version { theirs: word(8), ours });
        }
        let flags = word(10);
        // This version cannot interpret unknown flags or nonzero reserved bytes.
        if flags & !WITH_TOKEN != 0 || bytes[12..16] != [0; 4] {
            return Err(HelloError::Flags { flags });
        }
        Ok(Hello { service, with_token: flags == WITH_TOKEN, nonce })
    }
}

/// Both hellos as sent, the input of every proof.
#[derive(Debug, Clone, Copy)]
pub struct Said {
    pub server: Hello,
    pub client: Hello,
}

/// The secrets of a session.
#[derive(Clone)]
pub struct Keys {
    client: Hmac<Sha256>,
    server: Hmac<Sha256>,
    /// Key of the frames' tags.
    session: [u8; MAC_BYTES],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(…)")
    }
}

impl Said {
    /// Derives the keys from the token. Without a token the key is empty, and the proofs only
    /// detect accidental changes.
    pub fn keys(&self, token: Option<&Token>) -> Keys {
        let mac = |who: &[u8]| {
            let mut mac = keyed(token.map_or(&[], Token::bytes));
            // The role is part of the proof, so that it cannot be reflected.
            mac.update(who);
            mac.update(&self.server.emit());
            mac.update(&self.client.emit());
            mac
        };
        let session = mac(b"session").finalize().into_bytes().into();
        Keys { client: mac(b"client "), server: mac(b"server "), session }
    }
}

impl Keys {
    /// Returns the HMAC that proves that the client has the token.
    pub fn client_proof(&self) -> [u8; MAC_BYTES] {
        self.client.clone().finalize().into_bytes().into()
    }

    /// Returns the HMAC that proves that the server has the token.
    pub fn server_proof(&self) -> [u8; MAC_BYTES] {
        self.server.clone().finalize().into_bytes().into()
    }

    /// Checks the client's proof in constant time.
    pub fn is_client_proof(&self, proof: &[u8; MAC_BYTES]) -> bool {
        self.client.clone().verify_slice(proof).is_ok()
    }

    /// Checks the server's proof in constant time.
    pub fn is_server_proof(&self, proof: &[u8; MAC_BYTES]) -> bool {
        self.server.clone().verify_slice(proof).is_ok()
    }

    /// Key of the frames' tags.
    pub fn session(&self) -> [u8; MAC_BYTES] {
        self.session
    }
}

/// Returns an HMAC-SHA256 with this key. Keys of any length are valid (RFC 2104).
pub(crate) fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(server: u8, client: u8) -> Said {
        let hello = |byte| Hello { service: Service::Watch, with_token: true, nonce: [byte; 32] };
        Said { server: hello(server), client: hello(client) }
    }

    #[test]
    fn a_proof_is_good_for_one_token_one_end_and_one_pair_of_nonces() {
        let token = Token::from("0123456789abcdef");
        let keys = said(1, 2).keys(Some(&token));
        let proof = keys.client_proof();
        assert!(keys.is_client_proof(&proof));
        assert!(!keys.is_server_proof(&proof), "reflected");
        for other in [
            said(1, 2).keys(Some(&Token::from("0123456789abcdeg"))),
            said(1, 2).keys(None),
            said(3, 2).keys(Some(&token)),
            said(1, 3).keys(Some(&token)),
        ] {
            assert!(!other.is_client_proof(&proof));
            assert_ne!(other.session(), keys.session());
        }
    }

    #[test]
    fn another_version_is_named_with_ours() {
        let mut bytes = Hello::fresh(Service::Watch, false).emit();
        let other = Hello::parse(&bytes, Service::Measure).unwrap_err().to_string();
        assert_eq!(
            other,
            "the other end is `overlane watch --serve`, not `overlane measure serve`"
        );
        bytes[8..10].copy_from_slice(&7u16.to_be_bytes());
        let error = Hello::parse(&bytes, Service::Watch).unwrap_err().to_string();
        assert!(error.contains("version 7") && error.contains("version 1"), "{error}");
        let mut http = [0; HELLO_BYTES];
        http[..8].copy_from_slice(b"HTTP/1.1");
        assert!(matches!(Hello::parse(&http, Service::Watch), Err(HelloError::Magic { .. })));
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(nonce: [u8; 32], with_token: bool) {
            for service in Service::ALL {
                let hello = Hello { service, with_token, nonce };
                prop_assert_eq!(Hello::parse(&hello.emit(), service), Ok(hello));
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::array::uniform(any::<u8>())) {
            for service in Service::ALL {
                if let Ok(hello) = Hello::parse(&bytes, service) {
                    prop_assert_eq!(hello.emit(), bytes);
                }
            }
        }
    }
}
