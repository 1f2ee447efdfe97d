//! The first bytes of a control connection.
//!
//! ```text
//! server → client  hello: magic, version, whether a token is wanted, nonce
//! client → server  hello, proof
//! server → client  proof
//! ```
//!
//! A hello is 48 bytes: the service (8), its version (2, big-endian), flags (2),
//! zeros (4), nonce (32). Its first 10 bytes keep their meaning in every later
//! version, so that an end of another version can say which. A proof is the
//! HMAC-SHA256, keyed with the token, of who proves (`client` or `server`) and
//! both hellos as they were sent: fresh nonces make it worthless to whoever has
//! recorded it.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::service::Service;
use crate::token::Token;

/// Length of a hello.
pub const HELLO_BYTES: usize = 48;
/// Length of a proof, of a frame's tag, and of a session's key.
pub const MAC_BYTES: usize = 32;

const NONCE_BYTES: usize = 32;

/// Flag: the one who says so knows a token, and wants to see that the other
/// does.
const WITH_TOKEN: u16 = 1;

/// What one end says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// What it serves or wants, in the version of this program.
    pub service: Service,
    /// Whether it has a token.
    pub with_token: bool,
    /// Random bytes of this session, so that no proof can be used again.
    pub nonce: [u8; NONCE_BYTES],
}

/// Bytes that are not a hello.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Something else talks there.
    #[error("its first bytes are {got:02x?}: no overlane of this kind")]
    Magic {
        /// First bytes that came, in place of the protocol's own.
        got: [u8; 8],
    },
    /// An overlane that serves something else.
    #[error("it is `{}`, not `{}`", theirs.command(), ours.command())]
    Service {
        /// Of the other end.
        theirs: Service,
        /// What is wanted, or served, at this end.
        ours: Service,
    },
    /// An overlane of another protocol version.
    #[error("it speaks protocol version {theirs}, this is version {ours}: use the same overlane")]
    Version {
        /// Of the other end.
        theirs: u16,
        /// Protocol version of this end.
        ours: u16,
    },
    /// Flags that this version has not.
    #[error("its hello has unknown flags {flags:#06x}")]
    Flags {
        /// The flags and what follows them.
        flags: u16,
    },
}

impl Hello {
    /// A hello of this version with a fresh nonce.
    pub fn fresh(service: Service, with_token: bool) -> Hello {
        Hello { service, with_token, nonce: rand::random() }
    }

    /// As it is sent.
    pub fn emit(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&self.service.magic());
        bytes[8..10].copy_from_slice(&self.service.version().to_be_bytes());
        bytes[10..12].copy_from_slice(&u16::from(self.with_token).to_be_bytes());
        bytes[16..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Reads one of this service, in the version of this program.
    ///
    /// # Errors
    /// [`HelloError`], with what came instead.
    pub fn parse(bytes: &[u8; HELLO_BYTES], service: Service) -> Result<Hello, HelloError> {
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let (mut magic, mut nonce) = ([0; 8], [0; NONCE_BYTES]);
        magic.copy_from_slice(&bytes[..8]);
        nonce.copy_from_slice(&bytes[16..]);
        match Service::ALL.into_iter().find(|known| known.magic() == magic) {
            None => return Err(HelloError::Magic { got: magic }),
            Some(theirs) if theirs != service => {
                return Err(HelloError::Service { theirs, ours: service });
            }
            Some(_) => {}
        }
        let ours = service.version();
        if word(8) != ours {
            return Err(HelloError::Version { theirs: word(8), ours });
        }
        let flags = word(10);
        if flags & !WITH_TOKEN != 0 || bytes[12..16] != [0; 4] {
            return Err(HelloError::Flags { flags });
        }
        Ok(Hello { service, with_token: flags == WITH_TOKEN, nonce })
    }
}

/// What is said by both, as it was sent: what every proof is about.
#[derive(Debug, Clone, Copy)]
pub struct Said {
    /// Hello of the server.
    pub server: Hello,
    /// Hello of the client.
    pub client: Hello,
}

/// The secrets of a session.
#[derive(Clone)]
pub struct Keys {
    /// Proof of the client.
    client: Hmac<Sha256>,
    /// Proof of the server.
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
    /// What follows from the token; without one the empty key takes its place,
    /// and the proofs prove only that nothing was changed by accident.
    pub fn keys(&self, token: Option<&Token>) -> Keys {
        let mac = |who: &[u8]| {
            let mut mac = keyed(token.map_or(&[], Token::bytes));
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
    /// HMAC by which the client proves that it knows the token.
    pub fn client_proof(&self) -> [u8; MAC_BYTES] {
        self.client.clone().finalize().into_bytes().into()
    }

    /// HMAC by which the server proves that it knows the token.
    pub fn server_proof(&self) -> [u8; MAC_BYTES] {
        self.server.clone().finalize().into_bytes().into()
    }

    /// Compares in constant time.
    pub fn is_client_proof(&self, proof: &[u8; MAC_BYTES]) -> bool {
        self.client.clone().verify_slice(proof).is_ok()
    }

    /// Compares in constant time.
    pub fn is_server_proof(&self, proof: &[u8; MAC_BYTES]) -> bool {
        self.server.clone().verify_slice(proof).is_ok()
    }

    /// The key of the frames.
    pub fn session(&self) -> [u8; MAC_BYTES] {
        self.session
    }
}

/// HMAC-SHA256 takes a key of any length (RFC 2104).
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
        assert_eq!(other, "it is `overlane watch --serve`, not `overlane measure serve`");
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
