//! A packet's journey: what was seen of it, in order of time.

use crate::event::{Event, Flow, Kind};
use crate::pieces::{Datagram, Pieces};

/// A packet at one place on its journey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Index of the leg in the journey.
    pub leg: usize,
    /// What was seen.
    pub event: Event,
}

/// Where a leg comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The packet that the journey began with.
    First,
    /// A segment of the packet of another leg.
    SegmentOf(usize),
    /// A copy of the packet of another leg.
    CopyOf(usize),
    /// An IP fragment: of the packet of another leg, or, where that was not seen whole, of the
    /// packet that the other leg is a fragment of.
    FragmentOf(usize),
    /// The packet that was put together of this fragment and others.
    ReassembledFrom(usize),
}

/// How a leg ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ending {
    /// A process read it: process ID and command.
    Read(u32, String),
    /// A connection received it; who read it was not seen.
    Received,
    /// The kernel dropped it: `enum skb_drop_reason`, and an address of its code.
    Dropped(u32, u64),
    /// A device's driver had it last, and is done with it.
    Left(String),
    /// The kernel was done with it.
    Consumed,
    /// It was cut into segments.
    Cut,
    /// It was cut into IP fragments.
    Fragmented,
    /// It was put together with the other fragments.
    Reassembled,
    /// It was merged into the packet of this journey.
    MergedInto(u64),
    /// It was not seen any more.
    Unseen,
    /// Nobody looked any more: it was under way.
    UnderWay,
}

/// A packet on its journey, or what became of it on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leg {
    /// Where it comes from.
    pub origin: Origin,
    /// How it ended; `None`: it is under way.
    pub ending: Option<Ending>,
}

/// All that was seen of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journey {
    /// Counted from 1.
    pub number: u64,
    /// The packet, and what was cut or copied from it.
    pub legs: Vec<Leg>,
    /// In order of time.
    pub steps: Vec<Step>,
}

impl Journey {
    /// Headers of the packet as it was seen first.
    pub fn flow(&self) -> Option<Flow> {
        self.steps.iter().find_map(|step| step.event.flow)
    }

    /// From its first step to its last, ns.
    pub fn took(&self) -> u64 {
        let time = |step: Option<&Step>| step.map_or(0, |step| step.event.time);
        time(self.steps.last()).saturating_sub(time(self.steps.first()))
    }

    /// Segments of a leg that were seen.
    pub(crate) fn segments_of(&self, leg: usize) -> usize {
        self.legs.iter().filter(|other| other.origin == Origin::SegmentOf(leg)).count()
    }

    /// Whether nothing more is to come.
    pub(crate) fn is_over(&self) -> bool {
        if self.legs.iter().any(|leg| leg.ending.is_none()) {
            return false;
        }
        let is_over = |(at, leg): (usize, &Leg)| match leg.ending {
            None => false,
            // Its segments are sent after it has ended.
            Some(Ending::Cut) => {
                let whole = self.last(at).map_or(1, |event| usize::from(event.packets()));
                self.segments_of(at) >= whole
            }
            // Others of the same packet may come.
            Some(Ending::Fragmented | Ending::Reassembled) => true,
            Some(_) => self.pieces(at).outermost().is_none(),
        };
        self.legs.iter().enumerate().all(is_over)
    }

    /// Of the last step of a leg that tells where it was.
    pub(crate) fn last_place(&self, leg: usize) -> Option<&Event> {
        let of_it = self.steps.iter().rev().filter(|step| step.leg == leg);
        of_it.map(|step| &step.event).find(|event| event.kind != Kind::Consumed)
    }

    /// What a leg is a fragment of.
    pub(crate) fn pieces(&self, leg: usize) -> Pieces {
        self.last_place(leg).map(Pieces::of).unwrap_or_default()
    }

    /// Whether it was cut into fragments that were seen.
    pub(crate) fn is_fragmented(&self, leg: usize) -> bool {
        let mut parts = self.legs.iter().enumerate();
        parts.any(|(at, part)| {
            part.origin == Origin::FragmentOf(leg) && self.pieces(at).of_whole() == self.pieces(leg)
        })
    }

    /// The last step of a leg.
    pub(crate) fn last(&self, leg: usize) -> Option<&Event> {
        self.steps.iter().rev().find(|step| step.leg == leg).map(|step| &step.event)
    }

    /// Legs that wait in a namespace to be put together with this one: fragments of the same
    /// packet, itself among them.
    pub(crate) fn waiting_with(&self, leg: usize, of: &Datagram, netns: Option<u32>) -> Vec<usize> {
        let is_waiting = |at: &usize| {
            if !matches!(self.legs[*at].ending, None | Some(Ending::Consumed)) {
                return false;
            }
            self.last_place(*at).is_some_and(|last| {
                let is_received = matches!(last.kind, Kind::Backlog | Kind::Gro | Kind::Received);
                is_received && last.netns == netns && Pieces::of(last).is_of(of)
            })
        };
        (0..self.legs.len()).filter(|at| *at == leg || is_waiting(at)).collect()
    }

    /// The first fragment among these legs, or the first leg.
    pub(crate) fn first_of(&self, legs: &[usize], of: &Datagram) -> Option<usize> {
        let is_first = |leg: &&usize| {
            self.pieces(**leg).iter().any(|piece| piece.of == *of && piece.offset == 0)
        };
        legs.iter().find(is_first).or(legs.first()).copied()
    }
}
