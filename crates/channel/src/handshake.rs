//! The first bytes of a control connection.
//!
//! ```text
//! server → client  hello: magic, version, whether a token is required, nonce
//! client → server  hello, first Noise message
//! server → client  second Noise message
//! ```
//!
//! A hello is 48 bytes: service (8), its version (2, big-endian), flags (2), zeros (4), nonce
//! (32). The first 10 bytes keep their meaning in every later version, so that an end of another
//! version can report it. The two messages are the messages of
//! `Noise_NNpsk0_25519_ChaChaPoly_SHA256` (The Noise Protocol Framework, revision 34), with both
//! hellos as prologue and the SHA-256 of the token as pre-shared key. The first one proves that the
//! client has the token, before the server computes a Diffie-Hellman; the second one proves it of
//! the server. Fresh nonces make recorded messages useless, and fresh keys make recorded sessions
//! unreadable even to a later owner of the token. A false server can still try guesses on the first
//! message offline: tokens are random.

use sha2::{Digest, Sha256};
use snow::{Builder, HandshakeState};

use crate::frame::Cipher;
use crate::service::Service;
use crate::token::Token;

/// Length of a hello, bytes.
pub const HELLO_BYTES: usize = 48;
/// Length of a Noise message of the handshake, bytes: a public key and a tag.
pub const NOISE_BYTES: usize = 32 + 16;
/// Pattern and algorithms of the handshake.
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";

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
    #[error("unexpected first bytes {got:02x?}: the other end is not overlane")]
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

/// Both hellos as sent, the prologue of the Noise handshake.
#[derive(Debug, Clone, Copy)]
pub struct Said {
    pub server: Hello,
    pub client: Hello,
}

/// The client's side of the handshake, after its first message.
pub struct Initiator(HandshakeState);

impl std::fmt::Debug for Initiator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Initiator(…)")
    }
}

impl Said {
    /// Begins the client's side. Returns its state and the first message. Without a token the
    /// pre-shared key is empty: the session is encrypted, but neither end is authenticated.
    pub fn initiate(&self, token: Option<&Token>) -> (Initiator, [u8; NOISE_BYTES]) {
        let mut state = self.state(token, true);
        let mut message = [0; NOISE_BYTES];
        let length = state.write_message(&[], &mut message);
        // Cannot fail: the message has the length of the pattern's first one.
        assert_eq!(length, Ok(NOISE_BYTES), "first message of {NOISE}");
        (Initiator(state), message)
    }

    /// Checks the client's first message. Returns the second message and the session's cipher, or
    /// `None` if the client does not have the token.
    pub fn respond(
        &self,
        token: Option<&Token>,
        first: &[u8; NOISE_BYTES],
    ) -> Option<([u8; NOISE_BYTES], Cipher)> {
        let mut state = self.state(token, false);
        // A wrong token: the reason is not sent, because it would help guessing.
        state.read_message(first, &mut []).ok()?;
        let mut second = [0; NOISE_BYTES];
        state.write_message(&[], &mut second).ok()?;
        Some((second, Cipher::of_server(state.into_transport_mode().ok()?)))
    }

    fn state(&self, token: Option<&Token>, initiates: bool) -> HandshakeState {
        let mut prologue = [0; 2 * HELLO_BYTES];
        prologue[..HELLO_BYTES].copy_from_slice(&self.server.emit());
        prologue[HELLO_BYTES..].copy_from_slice(&self.client.emit());
        let key: [u8; 32] = Sha256::digest(token.map_or(&[][..], Token::bytes)).into();
        let built = NOISE.parse().and_then(|pattern| {
            let builder = Builder::new(pattern).prologue(&prologue)?.psk(0, &key)?;
            if initiates { builder.build_initiator() } else { builder.build_responder() }
        });
        // The pattern and its keys are constant.
        built.expect("the handshake's pattern is one that the library knows")
    }
}

impl Initiator {
    /// Checks the server's message. Returns the session's cipher, or `None` if the server does not
    /// have the token.
    pub fn finish(mut self, second: &[u8; NOISE_BYTES]) -> Option<Cipher> {
        self.0.read_message(second, &mut []).ok()?;
        Some(Cipher::of_client(self.0.into_transport_mode().ok()?))
    }
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
    fn a_message_is_good_for_one_token_and_one_pair_of_nonces() {
        let token = Token::from("0123456789abcdef");
        let (initiator, first) = said(1, 2).initiate(Some(&token));
        for (other, token) in [
            (said(1, 2), Some(Token::from("0123456789abcdeg"))),
            (said(1, 2), None),
            (said(3, 2), Some(token.clone())),
            (said(1, 3), Some(token.clone())),
        ] {
            assert!(other.respond(token.as_ref(), &first).is_none());
        }
        // Reflected: the server's messages are not a client's.
        let (second, mut server) = said(1, 2).respond(Some(&token), &first).unwrap();
        assert!(said(1, 2).respond(Some(&token), &second).is_none());
        let mut client = initiator.finish(&second).unwrap();
        let frame = client.seal(b"to the server").unwrap();
        assert_eq!(crate::frame::tests::open(&mut server, &frame).unwrap(), b"to the server");
        let frame = server.seal(b"to the client").unwrap();
        assert_eq!(crate::frame::tests::open(&mut client, &frame).unwrap(), b"to the client");
    }

    #[test]
    fn a_server_without_the_token_is_noticed() {
        let (token, wrong) = (Token::from("0123456789abcdef"), Token::from("another one"));
        let (initiator, _) = said(1, 2).initiate(Some(&token));
        let (_, of_another) = said(1, 2).initiate(Some(&wrong));
        let (second, _) = said(1, 2).respond(Some(&wrong), &of_another).unwrap();
        assert!(initiator.finish(&second).is_none());
    }

    #[test]
    fn sessions_of_one_token_have_different_keys() {
        let first = said(1, 2).initiate(None).1;
        assert_ne!(first, said(1, 2).initiate(None).1);
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
        assert!(error.contains("version 7") && error.contains("version 2"), "{error}");
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
