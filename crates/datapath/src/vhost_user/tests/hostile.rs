//! Clients and guests that break the specification: the error is logged, and the other side
//! continues.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::SIZE;
use super::guest::{Guest, MEMORY, USER};
use super::{Joined, PLAIN, frame};
use crate::tapbridge::Side;
use crate::vhost_user::GuestState;
use test_support::program::until;
use vm_memory::{Bytes, GuestAddress};

/// Checks that the right side works with a new guest on the left.
fn still_works(joined: &Joined, right: &mut Guest) {
    let mut left = None;
    // After a client was disconnected for an error, none is accepted for a second.
    until("a client is let in", || {
        left = Some(UnixStream::connect(joined.path(Side::Left)).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        joined.state(Side::Left) != GuestState::Waiting
    });
    drop(left);
    until("it has gone", || joined.state(Side::Left) == GuestState::Waiting);
    let mut left = joined.up(Side::Left, PLAIN);
    left.transmit([0; 12], &frame(333), false);
    until("a frame comes", || right.receive().is_some_and(|(_, got)| got == frame(333)));
}

#[test]
fn another_client_is_refused_while_one_is_connected() {
    let joined = Joined::new(1);
    let mut left = joined.up(Side::Left, PLAIN);
    let mut right = joined.up(Side::Right, PLAIN);
    let others: Vec<_> =
        (0..20).map(|_| Guest::connect(&joined.path(Side::Left), PLAIN, 1)).collect();
    assert!(others.iter().all(Guest::is_sent_away));
    joined.assert_event(Side::Left, "another client was refused, because one is connected");
    left.transmit([0; 12], &frame(100), false);
    assert!(right.expect().1 == frame(100));
}

#[test]
fn garbage_is_named_and_its_sender_sent_away() {
    let joined = Joined::new(1);
    let mut right = joined.up(Side::Right, PLAIN);
    let mut stream = UnixStream::connect(joined.path(Side::Left)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    joined.assert_event(Side::Left, "was disconnected: a message with flags");
    still_works(&joined, &mut right);
}

#[test]
fn a_client_that_is_silent_within_a_message_is_sent_away() {
    let joined = Joined::new(1);
    let mut right = joined.up(Side::Right, PLAIN);
    let mut stream = UnixStream::connect(joined.path(Side::Left)).unwrap();
    stream.write_all(&[1, 0, 0]).unwrap();
    joined.assert_event(Side::Left, "no data for 5 s");
    still_works(&joined, &mut right);
}

/// Invalid requests of a client, with the logged error.
#[test]
fn requests_that_cannot_be_are_named() {
    type Act = fn(&Guest);
    let wrong: [(&str, Act); 12] = [
        ("features 0x10, expected a subset of", |guest| {
            guest.send(2, &[0x10, 0, 0, 0, 0, 0, 0, 0], &[])
        }),
        ("protocol features", |guest| guest.send(16, &[0xff; 8], &[])),
        ("request 99, which was not offered", |guest| guest.send(99, &[], &[])),
        ("request 2 with 4 bytes, expected 8", |guest| guest.send(2, &[0; 4], &[])),
        ("ring 2, expected 0 to 1", |guest| guest.state(8, 2, 64)),
        ("entries 65536, expected 1 to 32768", |guest| guest.state(8, 0, 65_536)),
        ("next entry 65536", |guest| guest.state(10, 0, 65_536)),
        ("enable 2, expected 0 or 1", |guest| guest.state(18, 0, 2)),
        ("polling is not supported, got none", |guest| {
            guest.send(12, &0x100u64.to_ne_bytes(), &[])
        }),
        ("expected one eventfd, got something else", |guest| {
            guest.send(12, &0u64.to_ne_bytes(), &[guest.stream.as_fd()]);
        }),
        ("started before the guest's memory was set", |guest| {
            guest.send(12, &0u64.to_ne_bytes(), &[guest.rings[0].kick.as_fd()]);
        }),
        ("expected no descriptors, got 1", |guest| guest.send(3, &[], &[guest.stream.as_fd()])),
    ];
    std::thread::scope(|scope| {
        for (said, act) in wrong {
            scope.spawn(move || {
                let joined = Joined::new(1);
                let guest = Guest::connect(&joined.path(Side::Left), PLAIN, 1);
                act(&guest);
                joined.assert_event(Side::Left, said);
                assert!(guest.is_sent_away());
            });
        }
    });
}

/// Violations of a guest on its transmit ring, with the logged error.
#[test]
fn a_ring_that_breaks_a_rule_is_named_and_the_rest_goes_on() {
    const TABLE: u64 = 3 << 20;
    type Act = fn(&mut Guest);
    type Descriptor = (u64, u32, u16, u16);
    fn send(guest: &mut Guest, descriptors: &[(u16, Descriptor)], head: u16) {
        for (index, descriptor) in descriptors {
            guest.rings[1].descriptor(&guest.memory, *index, *descriptor);
        }
        guest.rings[1].offer(&guest.memory, head);
    }
    let wrong: [(&str, Act); 13] = [
        ("a chain has more than 64 descriptors", |guest| {
            send(guest, &[(0, (0, 12, 1, 1)), (1, (0, 12, 1, 0))], 0);
        }),
        ("descriptor 64 exceeds its table of 64", |guest| send(guest, &[], SIZE)),
        ("descriptor 65535 exceeds its table", |guest| {
            send(guest, &[(0, (0, 12, 1, 65_535))], 0);
        }),
        ("buffers at 0x800000 are outside the guest's memory", |guest| {
            send(guest, &[(0, (MEMORY, 64, 0, 0))], 0);
        }),
        ("buffers at 0x7fffff are outside", |guest| send(guest, &[(0, (MEMORY - 1, 64, 0, 0))], 0)),
        ("buffers at 0xffffffffffffffff are outside", |guest| {
            send(guest, &[(0, (u64::MAX, 64, 0, 0))], 0);
        }),
        ("writable by the device, expected", |guest| send(guest, &[(0, (0, 64, 2, 0))], 0)),
        ("an indirect table of 24 bytes: expected a multiple", |guest| {
            send(guest, &[(0, (TABLE, 24, 4, 0))], 0);
        }),
        ("an indirect table of 0 bytes", |guest| send(guest, &[(0, (TABLE, 0, 4, 0))], 0)),
        ("an indirect table of 4294967280 bytes: expected at most", |guest| {
            send(guest, &[(0, (TABLE, 0xffff_fff0, 4, 0))], 0);
        }),
        ("descriptors at 0xfffffffffffff000 are outside", |guest| {
            send(guest, &[(0, (!0xfff, 64, 4, 0))], 0);
        }),
        ("an indirect table of 64 bytes: it is inside another", |guest| {
            let mut inner = TABLE.to_le_bytes().to_vec();
            inner.extend([64, 0, 0, 0, 4, 0, 0, 0]);
            guest.memory.write_slice(&inner, GuestAddress(TABLE)).unwrap();
            send(guest, &[(0, (TABLE, 64, 4, 0))], 0);
        }),
        ("its available index advanced from 0 to 65", |guest| {
            guest.rings[1].set_available(&guest.memory, SIZE + 1);
            guest.rings[1].kick.write(1).unwrap();
        }),
    ];
    std::thread::scope(|scope| {
        for (said, act) in wrong {
            scope.spawn(move || {
                let joined = Joined::new(1);
                let mut left = joined.up(Side::Left, PLAIN);
                let mut right = joined.up(Side::Right, PLAIN);
                act(&mut left);
                joined.assert_event(Side::Left, said);
                let status = joined.watchers[0].status();
                assert_eq!(status.state, GuestState::Broken, "{status:?}");
                assert!(status.broken.unwrap().contains(said));
                // The other direction does not depend on that ring.
                right.transmit([0; 12], &frame(222), false);
                assert!(left.expect().1 == frame(222));
                // The driver restarts the ring.
                left.stop(1);
                left.rings[1].available = 0;
                left.rings[1].used = 0;
                let (available, used) = (left.rings[1].available_at(), left.rings[1].used_at());
                for at in [available, used] {
                    left.memory.write_obj(0u32, GuestAddress(at)).unwrap();
                }
                left.start(1, 0);
                left.wait();
                left.transmit([0; 12], &frame(111), false);
                assert!(right.expect().1 == frame(111));
            });
        }
    });
}

#[test]
fn a_ring_that_is_elsewhere_is_broken_from_the_start() {
    let joined = Joined::new(1);
    let left = joined.up(Side::Left, PLAIN);
    for (parts, said) in [
        ([MEMORY, 0x8000, 0x4000], "at 0x0 are outside the guest's memory"),
        ([MEMORY - 16, 0x8000, 0x4000], "descriptors at 0x7ffff0 are outside"),
        ([0, MEMORY - 4, 0x4000], "used entries at 0x7ffffc are outside"),
        ([8, 0x8000, 0x4000], "at 0x8, expected a multiple of 16"),
        ([0, 0x8002, 0x4000], "at 0x8002, expected a multiple of 4"),
    ] {
        left.stop(1);
        left.start(1, 0);
        left.send_address(1, parts.map(|at| USER + at));
        joined.assert_event(Side::Left, said);
    }
    left.stop(1);
    left.start(1, 0);
    left.wait();
    left.stop(1);
    left.state(8, 1, 63);
    left.send(12, &1u64.to_ne_bytes(), &[left.rings[1].kick.as_fd()]);
    joined.assert_event(Side::Left, "its size is 63, expected a power of two");
}
