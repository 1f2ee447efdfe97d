//! IP fragments: which packet a fragment belongs to, and what happened to a packet at one kernel
//! address between two events.

use std::net::IpAddr;

use crate::event::{Event, Flow};

/// A fragmented packet (RFC 791; RFC 8200, section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Datagram {
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// IPv4 only; `None`: IPv6, whose fragments may differ in it.
    protocol: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FragmentKey {
    pub of: Datagram,
    /// Offset in the packet's payload, bytes.
    pub offset: u16,
}

/// Fragment state of a packet, for its own header and for the outer one of its tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Fragments {
    outer: Option<FragmentKey>,
    inner: Option<FragmentKey>,
}

impl FragmentKey {
    fn of(flow: &Flow) -> Option<FragmentKey> {
        let (offset, _) = flow.fragment?;
        let Flow { source, destination, id, protocol, .. } = *flow;
        let protocol = source.is_ipv4().then_some(protocol);
        Some(FragmentKey { of: Datagram { source, destination, id, protocol }, offset })
    }
}

impl Fragments {
    pub fn of(event: &Event) -> Fragments {
        Fragments {
            outer: event.tunnel.as_ref().and_then(|tunnel| FragmentKey::of(&tunnel.outer)),
            inner: event.flow.as_ref().and_then(FragmentKey::of),
        }
    }

    /// Returns the fragments that it is, the outer one first.
    pub fn iter(self) -> impl Iterator<Item = FragmentKey> {
        self.outer.into_iter().chain(self.inner)
    }

    /// Returns the fragment that was made last.
    pub fn outermost(self) -> Option<FragmentKey> {
        self.iter().next()
    }

    /// Returns whether it is a fragment of `datagram`.
    pub fn is_of(self, datagram: &Datagram) -> bool {
        self.iter().any(|fragment| fragment.of == *datagram)
    }

    /// Returns the fragment state of the packet that the outermost fragment was made from.
    pub fn of_whole(self) -> Fragments {
        match self.outer {
            Some(_) => Fragments { outer: None, ..self },
            None => Fragments::default(),
        }
    }
}

/// The change of a packet between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Fragment state unchanged.
    None,
    /// The address now holds another packet.
    Other,
    /// These were reassembled: the outer one, then the inner one.
    Reassembled(Option<Datagram>, Option<Datagram>),
    /// It was fragmented; this is the first fragment.
    Fragmented,
    /// It was reassembled and fragmented again; this is the first fragment.
    Refragmented(Datagram),
}

/// Compares the fragment state of one of the two headers.
fn of_level(earlier: Option<FragmentKey>, later: Option<FragmentKey>) -> Change {
    match (earlier, later) {
        (Some(one), Some(other)) if one == other => Change::None,
        (None, None) => Change::None,
        (Some(fragment), None) => Change::Reassembled(Some(fragment.of), None),
        (None, Some(FragmentKey { offset: 0, .. })) => Change::Fragmented,
        // IPv6 uses a new identification. Addresses may have been translated in between.
        (Some(one), Some(FragmentKey { of, offset: 0 }))
            if one.of.id == of.id || of.protocol.is_none() =>
        {
            Change::Refragmented(one.of)
        }
        _ => Change::Other,
    }
}

/// Returns what happened to a packet at one address. Only the address shows that it is the same
/// packet.
pub(crate) fn change(earlier: &Event, later: &Event) -> Change {
    let (earlier, later) = (Fragments::of(earlier), Fragments::of(later));
    let outer = of_level(earlier.outer, later.outer);
    match (outer, of_level(earlier.inner, later.inner)) {
        (Change::None, change) | (change, Change::None) => change,
        (Change::Reassembled(outer, _), Change::Reassembled(inner, _)) => {
            Change::Reassembled(outer, inner)
        }
        _ => Change::Other,
    }
}
