//! What fuzzing calls for the control connection of `measure serve`: any bytes,
//! as a hello, as a head of a frame, as a request and as a reply.
//!
//! A file of its own, as the measure crate's test `remote_fuzz` has it, too, with
//! a stable compiler and a bounded number of cases.

use channel::Service;
use channel::frame::{Direction, HEAD_BYTES, REQUEST_LIMIT, Sequence};
use channel::handshake::{HELLO_BYTES, Hello};
use load::End;
use measure::remote::Limits;
use measure::remote::message::{Reply, Request, emit, parse_reply, parse_request};

/// Any bytes: nothing panics, what is parsed says the same when emitted, and a
/// load that passes is within the limits.
pub fn control(data: &[u8]) {
    if let Some(hello) = data.first_chunk::<HELLO_BYTES>()
        && let Ok(parsed) = Hello::parse(hello, Service::Measure)
    {
        assert_eq!(parsed.emit(), *hello);
    }
    if let Some((head, rest)) = data.split_first_chunk::<HEAD_BYTES>() {
        let mut sequence = Sequence::new([7; 32], Direction::ToServer, REQUEST_LIMIT);
        if let Ok(length) = sequence.length(head)
            && let Some(payload) = rest.get(..length)
        {
            assert!(length <= REQUEST_LIMIT);
            let mut own = Sequence::new([7; 32], Direction::ToServer, REQUEST_LIMIT);
            let sealed = own.seal(payload).unwrap();
            // Nobody guesses a tag.
            assert_eq!(sequence.open(head, payload).is_ok(), sealed[..HEAD_BYTES] == head[..]);
        }
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
