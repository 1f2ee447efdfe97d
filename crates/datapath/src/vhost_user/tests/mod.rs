//! Guests in this process, joined by a bridge.

mod guest;
mod hostile;
mod properties;
mod seeds;
mod tunnel;
mod untouched;

use std::path::PathBuf;
use std::sync::Arc;

use sys::tap::Offload;

use super::features::{EVENT_INDEX, MERGEABLE, PROTOCOL_FEATURES, VERSION_1, offered};
use super::untouched::MemoryLimit;
use super::{GuestPort, GuestPortOptions, GuestState, GuestWatcher};
use crate::bridge_engine::EngineChoice;
use crate::counters::{Counters, DropReason};
use crate::tapbridge::{Bridge, Running, Side};
use guest::{Guest, frame, gso_packet};
use test_support::program::until;

/// Entries of each ring.
const SIZE: u16 = 64;

/// Features without offloads.
const PLAIN: u64 = PROTOCOL_FEATURES | VERSION_1 | MERGEABLE;

/// Ports for two guests, joined.
struct Joined {
    directory: tempfile::TempDir,
    running: Running,
    watchers: [GuestWatcher; 2],
}

impl Joined {
    fn new(queues: usize) -> Joined {
        Joined::within(queues, MemoryLimit::open())
    }

    fn within(queues: usize, limit: Option<Arc<MemoryLimit>>) -> Joined {
        let directory = tempfile::tempdir().unwrap();
        let port = |name: &str| {
            let at = directory.path().join(name);
            let options = GuestPortOptions { queues, ..GuestPortOptions::at(at) };
            GuestPort::listen_within(&options, limit.clone()).unwrap()
        };
        let (left, right) = (port("left"), port("right"));
        let watchers = [left.watcher(), right.watcher()];
        let bridge = Bridge::new(left, right, None).unwrap();
        let running = bridge.engine(EngineChoice::Auto).unwrap().start().unwrap();
        Joined { directory, running, watchers }
    }

    fn path(&self, side: Side) -> PathBuf {
        self.directory.path().join(if side == Side::Left { "left" } else { "right" })
    }

    fn up(&self, side: Side, features: u64) -> Guest {
        Guest::up(&self.path(side), features, 1)
    }

    fn state(&self, side: Side) -> GuestState {
        self.watchers[side as usize].status().state
    }

    /// Returns the counters of a side once every received packet has an outcome.
    fn settled(&self, side: Side) -> Counters {
        let mut counters = Counters::default();
        until("received = forwarded + answered + dropped", || {
            counters = self.running.counters(side);
            counters.received == counters.forwarded + counters.answered + counters.dropped()
        });
        counters
    }

    fn assert_event(&self, side: Side, what: &str) {
        let mut all = Vec::new();
        until(what, || {
            all.extend(self.watchers[side as usize].news());
            all.iter().any(|line| line.contains(what))
        });
    }
}

#[test]
fn frames_cross_both_ways_whatever_was_agreed_on() {
    for features in [PLAIN, PLAIN | EVENT_INDEX, offered(Offload::PLAIN, 1)] {
        let joined = Joined::new(1);
        let mut left = joined.up(Side::Left, features);
        let mut right = joined.up(Side::Right, features);
        assert_eq!([joined.state(Side::Left), joined.state(Side::Right)], [GuestState::Running; 2]);
        // More frames than entries, so that every index wraps.
        for round in 0..3 * usize::from(SIZE) {
            let sent = frame(18 + round * 5);
            left.transmit([0; 12], &sent, round % 2 == 1);
            let (header, received) = right.expect();
            assert!(received == sent, "round {round}, {features:#x}");
            assert_eq!(header, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
            right.transmit([0; 12], &sent, false);
            assert!(left.expect().1 == sent);
        }
        for side in Side::BOTH {
            let counters = joined.settled(side);
            assert_eq!(counters.forwarded, 3 * u64::from(SIZE), "{counters:?}");
        }
    }
}

#[test]
fn a_gso_packet_stays_whole_for_sides_with_the_offload_and_is_segmented_for_others() {
    let joined = Joined::new(1);
    let mut left = joined.up(Side::Left, offered(Offload::PLAIN, 1));
    let mut right = joined.up(Side::Right, offered(Offload::PLAIN, 1));
    let (header, sent) = gso_packet(50_000, 1448);
    left.transmit(header, &sent, false);
    let (got, received) = right.expect();
    assert!(received == sent);
    assert_eq!(got[..10], header[..10]);
    // 12 and 50,054 bytes in buffers of 2,048.
    assert_eq!(got[10], 25);
    drop(right);
    until("the guest has gone", || joined.state(Side::Right) == GuestState::Waiting);

    let mut right = joined.up(Side::Right, PLAIN);
    left.transmit(header, &sent, true);
    let mut payload: Vec<u8> = Vec::new();
    for _ in 0..50_000usize.div_ceil(1448) {
        let (got, received) = right.expect();
        assert_eq!(got[..10], [0; 10]);
        let parsed = etherparse::PacketHeaders::from_ethernet_slice(&received).unwrap();
        payload.extend(parsed.payload.slice());
    }
    assert!(payload == sent[54..]);
    let counters = joined.settled(Side::Left);
    assert_eq!([counters.cut, counters.pieces, counters.forwarded], [1, 35, 2]);
}

#[test]
fn a_guest_without_room_holds_the_sender_back_and_not_for_long() {
    let joined = Joined::new(1);
    let mut left = joined.up(Side::Left, PLAIN | EVENT_INDEX);
    let mut right = joined.up(Side::Right, PLAIN | EVENT_INDEX);
    let sent = frame(100);
    // All buffers are full and none is offered again. One frame waits, the others are dropped.
    for _ in 0..u32::from(SIZE) + 20 {
        left.transmit([0; 12], &sent, false);
    }
    let mut counters = joined.running.counters(Side::Left);
    until("frames are dropped", || {
        counters = joined.running.counters(Side::Left);
        counters.dropped_by(DropReason::Full) > 0
    });
    assert_eq!(counters.forwarded, u64::from(SIZE));
    for _ in 0..SIZE {
        assert!(right.expect().1 == sent);
    }
    // There are buffers again.
    until("frames come again", || {
        left.transmit([0; 12], &sent, false);
        right.receive().is_some()
    });
    joined.settled(Side::Left);
}

#[test]
fn a_missing_receiver_is_a_drop_and_no_error() {
    let joined = Joined::new(1);
    let mut left = joined.up(Side::Left, PLAIN);
    left.transmit([0; 12], &frame(100), false);
    assert_eq!(joined.settled(Side::Left).dropped_by(DropReason::Down), 1);
    assert_eq!(joined.state(Side::Right), GuestState::Waiting);
}

#[test]
fn a_guest_that_restarts_goes_on_where_it_was() {
    let joined = Joined::new(1);
    let mut left = joined.up(Side::Left, PLAIN);
    let mut right = joined.up(Side::Right, PLAIN);
    for _ in 0..10 {
        left.transmit([0; 12], &frame(100), false);
        right.expect();
    }
    // QEMU does this when the guest is paused and resumed: the rings are unchanged.
    let bases = [0, 1].map(|ring| left.stop(ring));
    assert_eq!(bases, [0, 10]);
    assert_eq!(joined.state(Side::Left), GuestState::Connected);
    right.transmit([0; 12], &frame(60), false);
    assert_eq!(joined.settled(Side::Right).dropped_by(DropReason::Down), 1);
    for (ring, base) in bases.into_iter().enumerate() {
        left.start(ring, base);
    }
    left.wait();
    left.transmit([0; 12], &frame(200), false);
    assert!(right.expect().1 == frame(200));
    right.transmit([0; 12], &frame(201), false);
    assert!(left.expect().1 == frame(201));
    // A new process of the same guest: everything is set up again.
    drop(left);
    joined.assert_event(Side::Left, "the client has disconnected");
    let mut left = joined.up(Side::Left, PLAIN | EVENT_INDEX);
    left.transmit([0; 12], &frame(300), true);
    assert!(right.expect().1 == frame(300));
}

#[test]
fn memory_that_is_mapped_anew_is_used_at_once() {
    let joined = Joined::new(1);
    let mut left = joined.up(Side::Left, PLAIN);
    let mut right = joined.up(Side::Right, PLAIN);
    left.transmit([0; 12], &frame(100), false);
    right.expect();
    // QEMU does this when memory is hot-plugged.
    right.send_memory();
    right.wait();
    left.transmit([0; 12], &frame(101), false);
    assert!(right.expect().1 == frame(101));
}

#[test]
fn a_guest_of_fewer_queues_gets_all_frames() {
    let joined = Joined::new(2);
    let all = offered(Offload::PLAIN, 2);
    let mut left = Guest::up(&joined.path(Side::Left), all, 2);
    let mut right = Guest::up(&joined.path(Side::Right), all, 2);
    assert_eq!(joined.watchers[0].status().queues, 2);
    for guest in [&left, &right] {
        for ring in [2, 3] {
            guest.state(18, ring, 0);
        }
        guest.wait();
    }
    assert_eq!(joined.watchers[0].status().queues, 1);
    left.transmit([0; 12], &frame(100), false);
    assert!(right.expect().1 == frame(100));
    // Set up the second pair on one side only.
    for ring in [2, 3] {
        left.state(18, ring, 1);
    }
    left.wait();
    left.rings.swap(1, 3);
    left.transmit([0; 12], &frame(101), false);
    assert!(right.expect().1 == frame(101));
}

#[test]
fn ports_that_cannot_be_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| GuestPortOptions::at(directory.path().join(name));
    let refused = |options: &GuestPortOptions| GuestPort::listen(options).unwrap_err().to_string();
    assert!(refused(&GuestPortOptions { queues: 0, ..at("a") }).contains("0 queues"));
    assert!(refused(&GuestPortOptions { queues: 129, ..at("a") }).contains("129 queues"));
    assert!(refused(&at("a\x1b[2J")).contains("printable"));
    let (left, right) =
        (GuestPort::listen(&at("l")).unwrap(), GuestPort::listen(&at("r")).unwrap());
    let joined = Bridge::new(left, right, None).unwrap();
    let only = EngineChoice::Only(crate::bridge_engine::Engine::Bpf);
    assert!(joined.engine(only).unwrap_err().to_string().contains("a guest's memory"));
}
