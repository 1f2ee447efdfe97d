//! A packet's journey: all its events, in order of time.

use crate::event::{Event, Flow, Kind};
use crate::fragments::{Datagram, Fragments};

/// A packet at one place on its journey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub leg: usize,
    /// The packet's headers and state there.
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
    /// An IP fragment of the packet of another leg. If the whole packet was not seen: of the packet
    /// that the other leg is a fragment of.
    FragmentOf(usize),
    /// The packet that was reassembled from this fragment and others.
    ReassembledFrom(usize),
}

/// How a leg ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ending {
    /// A process read it: process ID and command.
    Read(u32, String),
    /// A socket received it; the reader was not seen.
    Received,
    /// The kernel dropped it: `enum skb_drop_reason`, and an address in the kernel's code.
    Dropped(u32, u64),
    /// The driver of a device sent it and freed it.
    Left(String),
    /// The kernel freed it after use.
    Consumed,
    Cut,
    /// It was cut into IP fragments.
    Fragmented,
    /// It was reassembled with the other fragments.
    Reassembled,
    MergedInto(u64),
    /// It was not seen again.
    Unseen,
    /// The window closed while it was under way.
    UnderWay,
}

/// A packet on its journey, or a packet that was made from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leg {
    /// Where it comes from.
    pub origin: Origin,
    /// How it ended; `None`: it has not.
    pub ending: Option<Ending>,
}

/// All events of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journey {
    /// Counted from 1.
    pub number: u64,
    /// The packet, and the packets that were segmented, fragmented or copied from it.
    pub legs: Vec<Leg>,
    /// In order of time.
    pub steps: Vec<Step>,
}

impl Journey {
    /// Returns the headers of the packet as it was first seen.
    pub fn flow(&self) -> Option<Flow> {
        self.steps.iter().find_map(|step| step.event.flow)
    }

    /// Returns the time from the first step to the last, ns.
    pub fn took(&self) -> u64 {
        let time = |step: Option<&Step>| step.map_or(0, |step| step.event.time);
        time(self.steps.last()).saturating_sub(time(self.steps.first()))
    }

    /// Returns the number of segments of a leg that were seen.
    pub(crate) fn segments_of(&self, leg: usize) -> usize {
        self.legs.iter().filter(|other| other.origin == Origin::SegmentOf(leg)).count()
    }

    /// Returns whether no more events are expected.
    pub(crate) fn is_over(&self) -> bool {
        // A leg without an ending still gets events.
        if self.legs.iter().any(|leg| leg.ending.is_none()) {
            return false;
        }
        let is_over = |(at, leg): (usize, &Leg)| match leg.ending {
            None => false,
            // The segments are sent after the whole packet has ended.
            Some(Ending::Cut) => {
                let whole = self.last(at).map_or(1, |event| usize::from(event.packets()));
                self.segments_of(at) >= whole
            }
            // Further fragments of the same packet may follow.
            Some(Ending::Fragmented | Ending::Reassembled) => true,
            Some(_) => self.fragments(at).outermost().is_none(),
        };
        self.legs.iter().enumerate().all(is_over)
    }

    pub(crate) fn last_place(&self, leg: usize) -> Option<&Event> {
        let of_it = self.steps.iter().rev().filter(|step| step.leg == leg);
        of_it.map(|step| &step.event).find(|event| event.kind != Kind::Consumed)
    }

    pub(crate) fn fragments(&self, leg: usize) -> Fragments {
        self.last_place(leg).map(Fragments::of).unwrap_or_default()
    }

    pub(crate) fn is_fragmented(&self, leg: usize) -> bool {
        let mut parts = self.legs.iter().enumerate();
        parts.any(|(at, part)| {
            part.origin == Origin::FragmentOf(leg)
                && self.fragments(at).of_whole() == self.fragments(leg)
        })
    }

    pub(crate) fn last(&self, leg: usize) -> Option<&Event> {
        self.steps.iter().rev().find(|step| step.leg == leg).map(|step| &step.event)
    }

    /// Returns the fragments of the same packet that wait in a namespace for reassembly, including
    /// `leg`.
    pub(crate) fn waiting_with(&self, leg: usize, of: &Datagram, netns: Option<u32>) -> Vec<usize> {
        let is_waiting = |at: &usize| {
            // It has already ended in another way, so it cannot be reassembled.
            if !matches!(self.legs[*at].ending, None | Some(Ending::Consumed)) {
                return false;
            }
            self.last_place(*at).is_some_and(|last| {
                // Only received fragments wait for reassembly.
                let is_received = matches!(last.kind, Kind::Backlog | Kind::Gro | Kind::Received);
                is_received && last.netns == netns && Fragments::of(last).is_of(of)
            })
        };
        (0..self.legs.len()).filter(|at| *at == leg || is_waiting(at)).collect()
    }

    /// Returns the first fragment among these legs, or else the first leg.
    pub(crate) fn first_of(&self, legs: &[usize], of: &Datagram) -> Option<usize> {
        let is_first = |leg: &&usize| {
            self.fragments(**leg).iter().any(|fragment| fragment.of == *of && fragment.offset == 0)
        };
        legs.iter().find(is_first).or(legs.first()).copied()
    }
}
