//! Published kinds of corruption, each with the expected result.

use probe::report::{Direction, End, Report, Search};
use probe::run::{Extent, Options};

use crate::bed::{Fault, Mangled};

/// Expected result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// No finding.
    Clean,
    /// Packets of one direction with this verdict; the guilty feature, or the first candidate if it
    /// is the peer's and the peer switches nothing.
    Bad(&'static str, &'static str),
    /// The same without a setting that could be the cause.
    Path(&'static str),
    /// A black hole in the path MTU.
    BlackHole,
}

/// A fault with its expected result.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Short description, with its reports.
    pub name: &'static str,
    pub fault: Fault,
    pub way: Direction,
    /// Expected result.
    pub wanted: Wanted,
}

const fn case(name: &'static str, fault: Fault, way: Direction, wanted: Wanted) -> Case {
    Case { name, fault, way, wanted }
}

const CHECKSUM: &str = "tx-checksum-ip-generic";

pub const CASES: &[Case] = &[
    case("no fault", Fault::None, Direction::Out, Wanted::Clean),
    case(
        "wrong inner checksum under tunnel GSO",
        Fault::InnerChecksum,
        Direction::Out,
        Wanted::Bad("corrupted", "tx-udp_tnl-segmentation"),
    ),
    case(
        "broken tail of a UDP GSO packet",
        Fault::UsoTail,
        Direction::Out,
        Wanted::Bad("corrupted", "tx-udp-segmentation"),
    ),
    case(
        "wrong length of the last UDP segment",
        Fault::UsoLength,
        Direction::Out,
        Wanted::Bad("corrupted", "tx-udp-segmentation"),
    ),
    case(
        "zeroed checksum",
        Fault::ChecksumZeroed,
        Direction::Out,
        Wanted::Bad("corrupted", CHECKSUM),
    ),
    case(
        "checksum that adds up to zero sent as none",
        Fault::ZeroSum,
        Direction::Out,
        Wanted::Bad("corrupted", CHECKSUM),
    ),
    case(
        "checksum left undone",
        Fault::ChecksumUnfinished,
        Direction::Out,
        Wanted::Bad("corrupted", CHECKSUM),
    ),
    case(
        "loss of GSO packets above 32 KiB",
        Fault::LargeGsoLost,
        Direction::Out,
        Wanted::Bad("lost", "tx-tcp-segmentation"),
    ),
    case(
        "loss above 1,400 bytes, lost ICMP",
        Fault::BlackHole(1400),
        Direction::Out,
        Wanted::BlackHole,
    ),
    case("router of MTU 1,400 with ICMP", Fault::Narrow(1400), Direction::Out, Wanted::Clean),
    case("only port 4789", Fault::Port4789, Direction::Out, Wanted::Bad("lost", CHECKSUM)),
    case(
        "only IPv6",
        Fault::Tso6,
        Direction::Out,
        Wanted::Bad("corrupted", "tx-tcp6-segmentation"),
    ),
    case(
        "CWR on each segment",
        Fault::Cwr,
        Direction::Out,
        Wanted::Bad("corrupted", "tx-tcp-ecn-segmentation"),
    ),
    case(
        "one direction only, from the peer",
        Fault::Tso4,
        Direction::Back,
        Wanted::Bad("corrupted", "tx-tcp-segmentation"),
    ),
    case("1 packet in 1,000", Fault::Rare, Direction::Out, Wanted::Path("corrupted")),
];

impl Case {
    /// Returns the state of the bed.
    pub fn mangled(&self) -> Mangled {
        let (out, back) = (self.way == Direction::Out, self.way == Direction::Back);
        Mangled { fault: self.fault, out, back }
    }

    /// Returns the options of a probe. Only the rare fault needs many packets.
    pub fn options(&self) -> Options {
        let extent = if self.fault == Fault::Rare { Extent::Default } else { Extent::Quick };
        Options { extent, rate: 20_000_000, ..Options::default() }
    }

    pub fn check(&self, report: &Report) -> Result<(), String> {
        let wrong = |why: &str| Err(format!("{}: {why}\n{}", self.name, summary(report)));
        let holes: Vec<Direction> =
            report.mtu.iter().filter(|mtu| mtu.black_hole).map(|mtu| mtu.way).collect();
        if self.wanted == Wanted::BlackHole {
            return match holes == [self.way] && report.bad.is_empty() {
                true => Ok(()),
                false => wrong("expected a black hole and nothing else"),
            };
        }
        if !holes.is_empty() {
            return wrong("unexpected black hole");
        }
        let (verdict, feature) = match self.wanted {
            Wanted::Bad(verdict, feature) => (verdict, Some(feature)),
            Wanted::Path(verdict) => (verdict, None),
            _ if report.has_findings() => return wrong("unexpected finding"),
            _ => return Ok(()),
        };
        if report.bad.is_empty() {
            return wrong("no finding");
        }
        if report.bad.iter().any(|bad| bad.way != self.way || bad.verdict != verdict) {
            return wrong("another direction or verdict");
        }
        let Some(feature) = feature else { return Ok(()) };
        let found = report.bad.iter().any(|bad| match (&bad.search, self.way) {
            (Search::Guilty(found), Direction::Out) => {
                found.end == End::Here && found.feature == feature
            }
            (Search::Guilty(found), Direction::Back) => {
                found.end == End::Peer && found.feature == feature
            }
            // The peer switches no settings.
            (_, Direction::Back) if report.peer_locked.is_some() => {
                let first = bad.candidates.first();
                first.is_some_and(|one| one.end == End::Peer && one.feature == feature)
            }
            _ => false,
        });
        if found { Ok(()) } else { wrong("another setting") }
    }
}

/// Returns the findings of a report, a line each.
pub fn summary(report: &Report) -> String {
    let mut lines = Vec::new();
    for bad in &report.bad {
        let first = bad.candidates.first().map(|one| &one.feature);
        lines.push(format!("{:?} {} {} {first:?}", bad.way, bad.verdict, bad.detail));
        lines.push(format!("  {:?} {:?}", bad.search, bad.classes));
    }
    format!("{}\nmtu: {:?}", lines.join("\n"), report.mtu)
}
