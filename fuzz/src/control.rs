//! What fuzzing calls for the control connection of `measure serve`: any bytes,
//! as a hello, as a head of a frame, as a request and as a reply.
//!
//! A file of its own, as the measure crate's test `remote_fuzz` has it, too, with
//! a stable compiler and a bounded number of cases.

use std::cell::RefCell;

use channel::Service;
use channel::frame::{Cipher, HEAD_BYTES, REQUEST_LIMIT};
use channel::handshake::{HELLO_BYTES, Hello, Said};
use load::End;
use measure::remote::Limits;
use measure::remote::message::{Reply, Request, emit, parse_reply, parse_request};

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

/// Any bytes: nothing panics, what is parsed says the same when emitted, and a
/// load that passes is within the limits.
pub fn control(data: &[u8]) {
    if let Some(hello) = data.first_chunk::<HELLO_BYTES>()
        && let Ok(parsed) = Hello::parse(hello, Service::Measure)
    {
        assert_eq!(parsed.emit(), *hello);
    }
    if let Some((head, rest)) = data.split_first_chunk::<HEAD_BYTES>() {
        // Nobody guesses a tag, and a refused frame does not disturb the next one.
        PAIR.with_borrow_mut(|(client, server)| {
            assert!(server.length(head).is_err());
            let payload = &rest[..rest.len().min(REQUEST_LIMIT)];
            let frame = client.seal(payload).unwrap();
            let (head, sealed) = frame.split_first_chunk().unwrap();
            let length = server.length(head).unwrap();
            assert_eq!(server.open(length, sealed).unwrap(), payload);
        });
    }
    if let Ok(request) = parse_request(data) {
        assert_eq!(parse_request(&emit(&request)).unwrap(), request);
        if let Request::Start(asked) = request
            && let Ok(load) = asked.load()
            && load.validate_at(End::Server).is_ok()
            && Limits::DEFAULT.check(&load).is_ok()
        {
            assert!((1..=Limits::DEFAULT.flows).contains(&load.flows));
            assert!((load.warmup + load.duration).as_secs() <= Limits::DEFAULT.load_s.into());
        }
    }
    if let Ok(reply) = parse_reply(data) {
        if let Reply::Counted(counted) = &reply {
            assert_eq!(counted.counted().flows.len(), counted.flows.len());
        }
        emit(&reply);
    }
}
