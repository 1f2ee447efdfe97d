//! Fuzz target for the control connection of `measure serve`: arbitrary bytes as a hello, as a head
//! of a frame, as a request and as a reply.
//!
//! It has a file of its own, because the measure crate's test `remote_fuzz` also includes it, for a
//! bounded number of cases with a stable compiler.

use std::cell::RefCell;

use channel::Service;
use channel::frame::{Cipher, HEAD_BYTES, REQUEST_LIMIT};
use channel::handshake::{HELLO_BYTES, Hello, Said};
use channel::message::{emit, parse};
use load::End;
use measure::remote::Limits;
use measure::remote::message::{Reply, Request};

thread_local! {
    /// The ciphers of a client and a server.
    static PAIR: RefCell<(Cipher, Cipher)> = RefCell::new(pair());
}

fn pair() -> (Cipher, Cipher) {
    let hello = || Hello::fresh(Service::Measure, false);
    let said = Said { server: hello(), client: hello() };
    let (initiator, first) = said.initiate(None);
    let (second, server) = said.respond(None, &first).unwrap();
    (initiator.finish(&second).unwrap(), server)
}

/// For arbitrary bytes: no panic, a parsed message is emitted unchanged, and an accepted load is
/// within the limits.
pub fn control(data: &[u8]) {
    if let Some(hello) = data.first_chunk::<HELLO_BYTES>()
        && let Ok(parsed) = Hello::parse(hello, Service::Measure)
    {
        assert_eq!(parsed.emit(), *hello);
    }
    if let Some((head, rest)) = data.split_first_chunk::<HEAD_BYTES>() {
        // A wrong tag is refused, and a refused frame does not disturb the next one.
        PAIR.with_borrow_mut(|(client, server)| {
            assert!(server.length(head).is_err());
            let payload = &rest[..rest.len().min(REQUEST_LIMIT)];
            let frame = client.seal(payload).unwrap();
            let (head, sealed) = frame.split_first_chunk().unwrap();
            let length = server.length(head).unwrap();
            assert_eq!(server.open(length, sealed).unwrap(), payload);
        });
    }
    if let Ok(request) = parse::<Request>(data) {
        assert_eq!(parse::<Request>(&emit(&request)).unwrap(), request);
        if let Request::Start(asked) = request
            && let Ok(load) = asked.load()
            && load.validate_at(End::Server).is_ok()
            && Limits::DEFAULT.check(&load).is_ok()
        {
            assert!((1..=Limits::DEFAULT.flows).contains(&load.flows));
            assert!((load.warmup + load.duration).as_secs() <= Limits::DEFAULT.load_s.into());
        }
    }
    if let Ok(reply) = parse::<Reply>(data) {
        if let Reply::Counted(counted) = &reply {
            assert_eq!(counted.counted().flows.len(), counted.flows.len());
        }
        emit(&reply);
    }
}
