//! Fragments of IP packets: of which packet a fragment is, and what became of a packet at one
//! address of the kernel between two moments.

use std::net::IpAddr;

use crate::event::{Event, Flow};

/// A packet that was cut into fragments (RFC 791; RFC 8200, 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Datagram {
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// Of IPv4; `None`: IPv6, where fragments may differ in it.
    protocol: Option<u8>,
}

/// A fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    pub of: Datagram,
    /// Where it begins, bytes.
    pub offset: u16,
}

/// Whether a packet is a fragment: itself, or that of the tunnel around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Pieces {
    outer: Option<Piece>,
    inner: Option<Piece>,
}

impl Piece {
    fn of(flow: &Flow) -> Option<Piece> {
        let (offset, _) = flow.fragment?;
        let Flow { source, destination, id, protocol, .. } = *flow;
        let protocol = source.is_ipv4().then_some(protocol);
        Some(Piece { of: Datagram { source, destination, id, protocol }, offset })
    }
}

impl Pieces {
    pub fn of(event: &Event) -> Pieces {
        Pieces {
            outer: event.tunnel.as_ref().and_then(|tunnel| Piece::of(&tunnel.outer)),
            inner: event.flow.as_ref().and_then(Piece::of),
        }
    }

    /// Each that it is a fragment of, the outer one first.
    pub fn iter(self) -> impl Iterator<Item = Piece> {
        self.outer.into_iter().chain(self.inner)
    }

    /// What was cut last.
    pub fn outermost(self) -> Option<Piece> {
        self.iter().next()
    }

    /// Whether it is a fragment of this.
    pub fn is_of(self, datagram: &Datagram) -> bool {
        self.iter().any(|piece| piece.of == *datagram)
    }

    /// Of the packet that the outermost one was cut from.
    pub fn of_whole(self) -> Pieces {
        match self.outer {
            Some(_) => Pieces { outer: None, ..self },
            None => Pieces::default(),
        }
    }
}

/// What became of a packet between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// As many fragments of the same packets as before.
    None,
    /// Another packet is at its address.
    Other,
    /// These were put together: the outer one, then the inner one.
    Reassembled(Option<Datagram>, Option<Datagram>),
    /// It was cut; this is the first fragment.
    Fragmented,
    /// It was put together, and cut again; this is the first fragment.
    Refragmented(Datagram),
}

/// The same for one of the two headers.
fn of_level(earlier: Option<Piece>, later: Option<Piece>) -> Change {
    match (earlier, later) {
        (Some(one), Some(other)) if one == other => Change::None,
        (None, None) => Change::None,
        (Some(piece), None) => Change::Reassembled(Some(piece.of), None),
        (None, Some(Piece { offset: 0, .. })) => Change::Fragmented,
        // IPv6 gives a new identification. Addresses may have been translated in between.
        (Some(one), Some(Piece { of, offset: 0 }))
            if one.of.id == of.id || of.protocol.is_none() =>
        {
            Change::Refragmented(one.of)
        }
        _ => Change::Other,
    }
}

/// What became of a packet; the address alone says that it is the same one.
pub(crate) fn change(earlier: &Event, later: &Event) -> Change {
    let (earlier, later) = (Pieces::of(earlier), Pieces::of(later));
    let outer = of_level(earlier.outer, later.outer);
    match (outer, of_level(earlier.inner, later.inner)) {
        (Change::None, change) | (change, Change::None) => change,
        (Change::Reassembled(outer, _), Change::Reassembled(inner, _)) => {
            Change::Reassembled(outer, inner)
        }
        _ => Change::Other,
    }
}
