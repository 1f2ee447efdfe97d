//! Peers that lie, and unrequested packets.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;

use probe::answering::{Answerer, Answering};
use probe::class::Class;
use probe::end::Access;
use probe::exchange::{Peer, Trouble};
use probe::message::{
    Answer, Ask, Batch, Collected, EndFacts, IcmpError, IcmpKind, Open, Opened, RATE, SendOutcome,
    Sent, VERSION,
};
use probe::report::Report;
use probe::run::{Extent, Options, run};
use probe::seen::Fault;
use probe::tally::Tally;
use sys::packet_socket::{PacketSocket, VNET_HEADER};
use test_support::{need, require};

use crate::bed::{Bed, DEVICE};

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));
const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 2));

/// A server that lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// Answers each request with another request's answer.
    OtherAnswer,
    /// Lists of other lengths than the batch.
    Lengths,
    /// Numbers as large as possible.
    Largest,
    /// Nothing arrives, and its kernel refuses everything, but the first sizes arrived.
    RefusesAll,
    /// A device of no size, or with endless texts.
    Device,
    /// Endless reasons with control characters.
    Texts,
}

const LIES: [Lie; 6] =
    [Lie::OtherAnswer, Lie::Lengths, Lie::Largest, Lie::RefusesAll, Lie::Device, Lie::Texts];

struct Liar {
    lie: Lie,
    listening: usize,
    asked: u32,
}

fn long() -> String {
    "\u{1b}[2J".repeat(20_000)
}

impl Liar {
    fn facts(&self) -> EndFacts {
        let odd = self.lie == Lie::Device;
        EndFacts {
            device: if odd { long() } else { "eth0".to_owned() },
            kind: None,
            driver: None,
            mtu: 1500,
            kernel: "6.1".to_owned(),
            hypervisor: None,
            features_on: vec!["tx-checksum-ip-generic".to_owned()],
            other: None,
            on_link: true,
            limited: None,
        }
    }

    fn tally(&self) -> Tally {
        match self.lie {
            Lie::Largest => Tally {
                frames: u32::MAX,
                whole: u32::MAX,
                seen: u32::MAX,
                recut: u32::MAX,
                partial: u32::MAX,
                merged: u32::MAX,
                translated: u32::MAX,
                largest: u32::MAX,
                faults: [(Fault::Tail, u32::MAX)].into(),
            },
            // Only the first rounds.
            Lie::RefusesAll if self.asked > 3 => Tally::default(),
            _ => Tally { frames: 1, ..Tally::default() },
        }
    }

    fn sent(&self, batch: &Batch) -> Sent {
        let count = batch.classes.len();
        let outcome = match self.lie {
            Lie::Largest => SendOutcome::Sent(u16::MAX),
            Lie::Texts => SendOutcome::Skipped(long()),
            Lie::RefusesAll => SendOutcome::Refused { errno: i32::MIN, sent: 0 },
            _ => SendOutcome::Sent(batch.repetitions),
        };
        let error = |kind| IcmpError { from: SERVER, class: u16::MAX, kind };
        Sent {
            outcomes: vec![outcome; if self.lie == Lie::Lengths { 0 } else { count }],
            handed: vec![self.tally(); count],
            errors: match self.lie {
                Lie::Largest => vec![error(IcmpKind::TooBig(u32::MAX)); 5000],
                _ => vec![error(IcmpKind::TooBig(0)), error(IcmpKind::TimeExceeded)],
            },
            bytes: u64::MAX,
            burst_us: u32::MAX,
        }
    }
}

impl Peer for Liar {
    fn ask(&mut self, ask: &Ask) -> Result<Answer, String> {
        self.asked += 1;
        match ask {
            Ask::Open(_) if self.lie == Lie::OtherAnswer => Ok(Answer::Listening),
            Ask::Open(_) => Ok(Answer::Opened(Box::new(Opened {
                overlane: long(),
                end: self.facts(),
                addresses: (SERVER, CLIENT),
                locked: (self.lie == Lie::Texts).then(long),
            }))),
            Ask::Listen(batch) => {
                self.listening = batch.classes.len();
                Ok(Answer::Listening)
            }
            Ask::Collect if self.lie == Lie::Texts && self.asked > 20 => Err(long()),
            Ask::Collect => {
                let count = self.listening + usize::from(self.lie == Lie::Lengths);
                let texts = self.lie == Lie::Texts;
                Ok(Answer::Collected(Collected {
                    tallies: vec![self.tally(); count],
                    late: [(0, u32::MAX), (u16::MAX, u32::MAX)].into(),
                    missed: 0,
                    blind: match texts {
                        true => (0..u16::MAX).map(|index| (index, long())).take(50).collect(),
                        false => BTreeMap::new(),
                    },
                }))
            }
            Ask::Send(batch) => Ok(Answer::Sent(self.sent(batch))),
            Ask::SwitchOff(_) | Ask::Restore => Ok(Answer::Listening),
        }
    }
}

/// Lengths of all texts of a report that come from the peer.
fn longest(report: &Report) -> usize {
    serde_json::to_value(report).map_or(0, |value| longest_of(&value))
}

fn longest_of(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(list) => list.iter().map(longest_of).max().unwrap_or(0),
        serde_json::Value::Object(map) => map.values().map(longest_of).max().unwrap_or(0),
        _ => 0,
    }
}

#[test]
fn a_client_survives_a_server_that_lies() {
    require!(need::root());
    let bed = Bed::new(false);
    let [client, _] = bed.namespaces();
    let options = Options { extent: Extent::Sample, rate: 20_000_000, ..Options::default() };
    for lie in LIES {
        let mut liar = Liar { lie, listening: 0, asked: 0 };
        let outcome = client.run(|| {
            let stop = AtomicBool::new(false);
            run(&mut liar, (CLIENT, SERVER), &options, None, &stop, &|_| {})
        });
        let asked = liar.asked;
        // No lie keeps it busy for ever.
        assert!(asked < 200, "{lie:?}: {asked} requests");
        match (lie, outcome.unwrap()) {
            (Lie::OtherAnswer | Lie::Lengths, Err(Trouble::Peer(reason))) => {
                assert_eq!(reason, "unexpected answer", "{lie:?}");
            }
            (Lie::Device | Lie::Texts, Err(Trouble::Peer(reason))) => {
                assert!(reason.len() < 300, "{lie:?}: {reason}");
            }
            (Lie::Largest | Lie::RefusesAll | Lie::Texts, Ok(report)) => {
                assert!(longest(&report) < 1000, "{lie:?}");
            }
            // This end counts packets from the peer itself: there are none.
            (Lie::Largest | Lie::RefusesAll | Lie::Texts, Err(Trouble::Nothing(..))) => {}
            (_, outcome) => panic!("{lie:?}: {outcome:?}"),
        }
    }
}

fn good_open() -> Open {
    Open {
        version: VERSION,
        session: 7,
        own_port: 5211,
        source_base: 25_000,
        vni: 0xe0_0000,
        other: None,
    }
}

#[test]
fn a_server_refuses_what_exceeds_its_limits_and_stays_usable() {
    require!(need::root());
    let bed = Bed::new(false);
    let [_, server] = bed.namespaces();
    server
        .run(|| {
            let answerer = Answerer::open();
            let mut hostile = Answering::new(&answerer, CLIENT, SERVER);
            let plain = Batch::new(0, vec![Class::PLAIN], 1, RATE);
            for ask in [
                Ask::Collect,
                Ask::Listen(plain.clone()),
                Ask::Send(plain.clone()),
                Ask::Open(Open { version: VERSION + 1, ..good_open() }),
                Ask::Open(Open { own_port: u16::MAX, ..good_open() }),
                Ask::Open(Open { source_base: u16::MAX, ..good_open() }),
                Ask::Open(Open { vni: u32::MAX, ..good_open() }),
                Ask::Open(Open { other: "ff02::1".parse().ok(), ..good_open() }),
            ] {
                let text = format!("{ask:?}");
                assert!(hostile.answer(ask).is_err(), "{text}");
            }
            assert!(!hostile.is_open());
            assert!(matches!(hostile.answer(Ask::Open(good_open())), Ok(Answer::Opened(_))));
            for ask in [
                Ask::Send(Batch { rate: 0, ..plain.clone() }),
                Ask::Send(Batch { repetitions: u16::MAX, ..plain.clone() }),
                Ask::Send(Batch { first: u16::MAX, ..plain.clone() }),
                Ask::Listen(Batch { classes: vec![Class::PLAIN; 201], ..plain.clone() }),
                Ask::Listen(Batch {
                    classes: vec![Class { payload: 0, ..Class::PLAIN }],
                    ..plain.clone()
                }),
                Ask::Collect,
            ] {
                let text = format!("{ask:?}");
                assert!(hostile.answer(ask).is_err(), "{text}");
            }
            // The session has the only sockets, also after it was refused something.
            assert!(hostile.is_open());
            drop(hostile);
            let mut next = Answering::new(&answerer, CLIENT, SERVER);
            assert!(matches!(next.answer(Ask::Open(good_open())), Ok(Answer::Opened(_))));
            assert!(matches!(next.answer(Ask::Send(plain)), Ok(Answer::Sent(_))));
        })
        .unwrap();
}

/// Frames of the session's ports in all states of damage.
fn flood(count: usize) -> Vec<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut frames = Vec::new();
    for _ in 0..count {
        let length = 14 + (random() % 1400) as usize;
        let mut frame: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        // To the server, IPv4 or IPv6, often UDP, TCP or ICMP of the session.
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 9, 2]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 9, 1]);
        let ipv6 = random() % 2 == 0;
        frame[12..14].copy_from_slice(if ipv6 { &[0x86, 0xdd] } else { &[8, 0] });
        let (protocol, ports) = if ipv6 { (20, 54) } else { (23, 34) };
        if frame.len() > ports + 20 {
            frame[14] = if ipv6 { 0x60 } else { 0x45 };
            frame[protocol] = [17, 6, 1, 58, 4, 44][(random() % 6) as usize];
            let source = 25_000 + (random() % 3) as u16;
            frame[ports..ports + 2].copy_from_slice(&source.to_be_bytes());
            frame[ports + 2..ports + 4].copy_from_slice(&5211_u16.to_be_bytes());
        }
        frames.push(frame);
    }
    frames
}

#[test]
fn a_flood_of_malformed_packets_hides_no_packet_and_claims_none() {
    require!(need::root());
    let bed = Bed::new(false);
    let [client, server] = bed.namespaces();
    let frames = flood(5000);
    let collected = server
        .run(|| {
            let answerer = Answerer::with(Access::open());
            let mut session = Answering::new(&answerer, CLIENT, SERVER);
            session.answer(Ask::Open(good_open())).unwrap();
            let classes = vec![Class::PLAIN, Class { payload: 1, ..Class::PLAIN }];
            session.answer(Ask::Listen(Batch::new(0, classes, 1, RATE))).unwrap();
            let sent = client.run(|| {
                let socket = PacketSocket::open().unwrap();
                let index = netstate::Netlink::open().unwrap().link(DEVICE).unwrap().index;
                let sent =
                    frames.iter().filter(|f| socket.send(index, &[0; VNET_HEADER], f).is_ok());
                sent.count()
            });
            assert!(sent.unwrap() > 0);
            session.answer(Ask::Collect).unwrap()
        })
        .unwrap();
    let Answer::Collected(collected) = collected else { panic!("{collected:?}") };
    // Not one of them has a whole block of the session's payload.
    for tally in &collected.tallies {
        assert_eq!(tally.whole, 0, "{tally:?}");
    }
    assert!(collected.late.is_empty(), "{:?}", collected.late);
}
