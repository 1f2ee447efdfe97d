use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { ageing: 300, entries: 30, share: 20, moves: 4 };

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

fn remote(last: u8) -> Place {
    Place::Remote([10, 0, 0, last].into())
}

#[test]
fn learned_confirmed_forgotten() {
    let fdb = Fdb::new([]);
    assert_eq!(fdb.find(mac(1), 0, &LIMITS), None);
    assert_eq!(fdb.learn(mac(1), remote(1), 0, &LIMITS), Learned::New);
    assert_eq!(fdb.learn(mac(1), remote(1), 300, &LIMITS), Learned::Known);
    assert_eq!(fdb.find(mac(1), 600, &LIMITS), Some(remote(1)));
    assert_eq!(fdb.find(mac(1), 601, &LIMITS), None);
}

#[test]
fn static_entries_stay() {
    let fdb = Fdb::new([(mac(1), remote(1))]);
    assert_eq!(fdb.learn(mac(1), remote(1), 0, &LIMITS), Learned::Known);
    assert_eq!(fdb.learn(mac(1), remote(2), 0, &LIMITS), Learned::Configured);
    assert_eq!(fdb.learn(mac(1), Place::Local, 0, &LIMITS), Learned::Configured);
    assert!(fdb.contradicts(mac(1), Place::Local) && !fdb.contradicts(mac(1), remote(1)));
    assert_eq!(fdb.find(mac(1), 1_000_000, &LIMITS), Some(remote(1)));
    fdb.learn(mac(2), remote(2), 0, &LIMITS);
    fdb.learn(mac(3), remote(3), 0, &LIMITS);
    fdb.configure([], |place| place != remote(2));
    assert_eq!(fdb.count(), (0, 1));
    assert_eq!(fdb.find(mac(3), 0, &LIMITS), Some(remote(3)));
}

/// A flood of source addresses only fills the share of the flooding endpoint.
#[test]
fn a_flood_of_addresses_takes_no_others_room() {
    let fdb = Fdb::new([(mac(200), remote(9))]);
    assert_eq!(fdb.learn(mac(201), remote(2), 10, &LIMITS), Learned::New);
    for n in 0..200 {
        let learned = fdb.learn(mac(n), remote(1), 10, &LIMITS);
        assert_eq!(learned, if n < 20 { Learned::New } else { Learned::Quota }, "{n}");
    }
    assert_eq!(fdb.count(), (1, 21));
    assert_eq!(fdb.largest(), Some(([10, 0, 0, 1].into(), 20)));
    assert_eq!(fdb.find(mac(201), 10, &LIMITS), Some(remote(2)));
    for n in 100..109 {
        assert_eq!(fdb.learn(mac(n), remote(2), 10, &LIMITS), Learned::New);
    }
    assert_eq!(fdb.learn(mac(109), remote(3), 10, &LIMITS), Learned::Full);
    // Remote endpoints together leave enough room for the TAP's side.
    for n in 110..140 {
        assert_eq!(fdb.learn(mac(n), Place::Local, 10, &LIMITS), Learned::New);
    }
    assert_eq!(fdb.learn(mac(140), Place::Local, 10, &LIMITS), Learned::Full);
    // Expired entries make room.
    assert_eq!(fdb.learn(mac(150), remote(1), 311, &LIMITS), Learned::New);
    assert_eq!(fdb.count(), (1, 1));
}

#[test]
fn a_virtual_machine_that_moves_is_followed_at_once() {
    let fdb = Fdb::new([]);
    fdb.learn(mac(1), remote(1), 100, &LIMITS);
    for (place, now) in [(remote(2), 100), (remote(3), 101), (remote(1), 102), (Place::Local, 103)]
    {
        fdb.learn(mac(1), place, now, &LIMITS);
        assert_eq!(fdb.find(mac(1), now, &LIMITS), Some(place), "{now}");
    }
    // From this side to a new place, after the pause of a migration.
    assert_eq!(fdb.learn(mac(1), remote(4), 104, &LIMITS), Learned::Local);
    assert_eq!(fdb.learn(mac(1), remote(4), 105, &LIMITS), Learned::Moved);
    assert_eq!(fdb.find(mac(1), 105, &LIMITS), Some(remote(4)));
}

#[test]
fn an_owner_that_still_sends_has_not_moved() {
    let fdb = Fdb::new([]);
    fdb.learn(mac(1), remote(1), 100, &LIMITS);
    assert_eq!(fdb.learn(mac(1), remote(2), 100, &LIMITS), Learned::Moved);
    assert_eq!(fdb.learn(mac(1), remote(1), 101, &LIMITS), Learned::Returned);
    for now in 101..=180 {
        assert_eq!(fdb.learn(mac(1), remote(2), now, &LIMITS), Learned::Contested);
        if now % 9 == 0 {
            assert_eq!(fdb.learn(mac(1), remote(1), now, &LIMITS), Learned::Known);
        }
    }
    // Silent for longer: the address has moved, until its owner is heard again.
    assert_eq!(fdb.learn(mac(1), remote(2), 181, &LIMITS), Learned::Contested);
    assert_eq!(fdb.learn(mac(1), remote(2), 190, &LIMITS), Learned::Moved);
    assert_eq!(fdb.learn(mac(1), remote(1), 450, &LIMITS), Learned::Returned);
}

#[test]
fn an_address_of_the_taps_side_is_not_taken_while_it_sends() {
    let fdb = Fdb::new([]);
    fdb.learn(mac(1), Place::Local, 100, &LIMITS);
    for now in 100..150 {
        assert_eq!(fdb.learn(mac(1), remote(1), now, &LIMITS), Learned::Local);
        fdb.learn(mac(1), Place::Local, now, &LIMITS);
    }
    // Claimed before its owner was heard: it moves here with the owner's first packet, and stays.
    fdb.learn(mac(2), remote(1), 100, &LIMITS);
    assert_eq!(fdb.learn(mac(2), Place::Local, 100, &LIMITS), Learned::Moved);
    assert_eq!(fdb.learn(mac(2), remote(1), 105, &LIMITS), Learned::Local);
    assert_eq!(fdb.find(mac(2), 105, &LIMITS), Some(Place::Local));
}

/// One endpoint may take over a limited number of addresses per minute from places that still send.
/// Silent places are followed as usual.
#[test]
fn an_end_that_takes_too_many_waits_for_silence() {
    let fdb = Fdb::new([]);
    for n in 0..10 {
        fdb.learn(mac(n), remote(1), 100, &LIMITS);
    }
    for n in 0..10 {
        let learned = fdb.learn(mac(n), remote(2), 101, &LIMITS);
        assert_eq!(learned, if n < 4 { Learned::Moved } else { Learned::Contested });
    }
    assert_eq!(fdb.learn(mac(9), remote(3), 101, &LIMITS), Learned::Moved, "another end's");
    assert_eq!(fdb.learn(mac(5), remote(2), 110, &LIMITS), Learned::Moved, "silent");
    assert_eq!(fdb.learn(mac(9), remote(2), 161, &LIMITS), Learned::Moved, "a minute later");
}

/// If any endpoint may send, the state kept per endpoint is bounded.
#[test]
fn ends_without_number_leave_nothing_behind() {
    let limits = Limits { entries: 1 << 20, share: 1 << 20, ..LIMITS };
    let fdb = Fdb::new([]);
    for n in 0u32..20_000 {
        let place = Place::Remote(IpAddr::from(n.to_be_bytes()));
        fdb.learn(mac((n % 100) as u8), place, n / 1000, &limits);
    }
    let table = fdb.read();
    assert!(table.shares.ends() <= 4096 + 100, "{}", table.shares.ends());
    assert!(table.entries.values().all(|entry| entry.claims.len() <= CLAIMS));
    assert_eq!(fdb.count(), (0, 100));
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// This many seconds pass, in which the owner sends when it is due.
    Later(u32),
    /// This hostile endpoint claims the address.
    Hostile(u8),
    /// The owner sends one packet from its place.
    Owner,
    /// The owner sends from its old place and then from a new one.
    Migrate(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (1u32..20).prop_map(Event::Later),
        8 => (100u8..105).prop_map(Event::Hostile),
        2 => Just(Event::Owner),
        1 => (0u8..3).prop_map(Event::Migrate),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Random claims of five hostile endpoints against an owner that sends at least every `gap`
    /// seconds. After each packet of the owner, the address is at the owner's place. In between, an
    /// endpoint can take it only once, unless it claims nothing for a minute. From an owner behind
    /// the TAP, it can take it only when the owner is silent.
    #[test]
    fn an_owner_that_sends_has_its_address(
        gap in 1u32..SILENCE,
        events in proptest::collection::vec(event(), 1..300),
        at_home: bool,
    ) {
        let limits = Limits { moves: 1000, ..LIMITS };
        let fdb = Fdb::new([]);
        let here = if at_home { Place::Local } else { remote(0) };
        let (mut owner, mut now, mut sent) = (here, 1000, 1000);
        let mut claimed = [0u32; 256];
        let mut last = here;
        fdb.learn(mac(1), owner, now, &limits);
        let send = |owner: Place, now: u32| {
            fdb.learn(mac(1), owner, now, &limits);
            fdb.find(mac(1), now, &limits)
        };
        for event in events {
            match event {
                Event::Later(seconds) => {
                    for _ in 0..seconds {
                        now += 1;
                        if now - sent >= gap {
                            prop_assert_eq!(send(owner, now), Some(owner));
                            sent = now;
                        }
                    }
                }
                Event::Owner => {
                    prop_assert_eq!(send(owner, now), Some(owner));
                    sent = now;
                }
                // A migration to another remote endpoint. From this side there is a pause first.
                Event::Migrate(to) if !at_home => {
                    prop_assert_eq!(send(owner, now), Some(owner));
                    let back = remote(to) != owner && last == remote(to);
                    owner = remote(to);
                    let found = send(owner, now);
                    // An owner that was there a moment ago waits for the other's silence if it was
                    // called back there.
                    if found != Some(owner) {
                        prop_assert!(!back);
                        now += SILENCE;
                        prop_assert_eq!(send(owner, now), Some(owner));
                    }
                    (sent, last) = (now, owner);
                }
                Event::Migrate(_) => {}
                Event::Hostile(end) => {
                    let before = fdb.find(mac(1), now, &limits);
                    fdb.learn(mac(1), remote(end), now, &limits);
                    let after = fdb.find(mac(1), now, &limits);
                    if before == Some(owner) && after != before {
                        // Nothing is remembered about an endpoint that was refused because the
                        // TAP's side still sends.
                        let first = owner == Place::Local || now - claimed[usize::from(end)] > MEMORY;
                        prop_assert!(owner != Place::Local || now - sent >= LOCAL_SILENCE);
                        prop_assert!(first, "end {end} claimed within a minute and again at {now}");
                    }
                    // A claim that never got the address is forgotten.
                    if after != before || claimed[usize::from(end)] > 0 {
                        claimed[usize::from(end)] = now;
                    }
                }
            }
        }
    }
}
