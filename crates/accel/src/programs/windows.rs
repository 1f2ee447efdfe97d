//! TCP connections whose packets bypass conntrack, and the maps of their windows (`bpf/window.h`).
//!
//! The BPF programs copy the windows from conntrack and track them. Once a copy is known to be
//! right, conntrack is made to accept any sequence number, because it no longer sees all packets.
//! An index is freed when conntrack's entry is gone.

use std::collections::{HashMap, HashSet};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use netstate::connection::{Entry, Tuple};
use zerocopy::FromBytes;

use super::Programs;
use super::abi::{
    self, CONNECTION_NONE, CONNECTION_TRACKED, CONNECTION_WANTED, FLOW_TRACKED, RawConnection,
    RawFlowKey, RawTracked,
};
use super::object::failed;
use crate::Result;

/// A use of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) connection: u32,
    pub(crate) serial: u32,
}

/// The connections with an index.
pub(crate) struct Windows {
    connections: MapHandle,
    tracked: MapHandle,
    /// By original tuple, with the reply tuple.
    known: HashMap<Tuple, (Window, Tuple)>,
    /// Connections whose windows are not copied yet.
    pending: Vec<Tuple>,
    free: Vec<u32>,
    /// First index that was never used.
    next: u32,
    most: u32,
    serial: u32,
    /// No further connection gets an index.
    is_closed: bool,
}

impl Windows {
    pub(super) fn of(programs: &Programs) -> Result<Windows> {
        let connections = programs.map("connections", size_of::<RawConnection>())?;
        // Without the guard, conntrack alone has to track the windows.
        let most = if programs.has_guard() { connections.max_entries() } else { 0 };
        let tracked = programs.map("tracked_flows", size_of::<RawTracked>())?;
        let (known, pending, free) = (HashMap::new(), Vec::new(), Vec::new());
        let (next, serial, is_closed) = (0, 0, false);
        Ok(Windows { connections, tracked, known, pending, free, next, most, serial, is_closed })
    }

    /// Returns the use of an index for an entry, a new one if needed. `None`: there is no room, no
    /// further connection is admitted, or conntrack's windows are outdated, because it accepts any
    /// sequence number for another reason.
    pub(crate) fn track(&mut self, entry: &Entry) -> Result<Option<Window>> {
        if let Some((window, reply)) = self.known.get(&entry.original) {
            // `track` also repeats requests whose windows are still being copied.
            if *reply == entry.reply && self.state(*window)? != CONNECTION_NONE {
                return Ok(Some(*window));
            }
            self.free(&entry.original)?;
        }
        if self.is_closed || entry.liberal != [false; 2] {
            return Ok(None);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.next == self.most => return Ok(None),
            None => {
                self.next += 1;
                self.next - 1
            }
        };
        self.serial = self.serial.wrapping_add(1).max(1);
        let window = Window { connection: index, serial: self.serial };
        self.write(window, CONNECTION_WANTED)?;
        self.known.insert(entry.original, (window, entry.reply));
        for (tuple, reply) in [(entry.original, 0), (entry.reply, 1)] {
            let value = abi::bytes(&RawTracked { connection: index, reply });
            let written = self.tracked.update(&key(&tuple), &value, MapFlags::ANY);
            if let Err(error) = written {
                self.free(&entry.original)?;
                return Err(failed("update", "map tracked_flows", error.to_string()));
            }
        }
        self.pending.push(entry.original);
        Ok(Some(window))
    }

    /// From now on conntrack alone tracks the windows of further connections.
    pub(crate) fn admit_none(&mut self) {
        self.is_closed = true;
    }

    /// Whether windows are still being copied.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes the connections whose windows have been copied since the last call.
    pub(crate) fn copied(&mut self) -> Result<Vec<Tuple>> {
        let mut copied = Vec::new();
        for tuple in std::mem::take(&mut self.pending) {
            let Some((window, _)) = self.known.get(&tuple) else { continue };
            match self.state(*window)? {
                CONNECTION_NONE => {}
                CONNECTION_TRACKED => copied.push(tuple),
                state if state < CONNECTION_TRACKED => self.pending.push(tuple),
                _ => {}
            }
        }
        Ok(copied)
    }

    /// The connections with an index: their original tuples.
    pub(crate) fn all(&self) -> Vec<Tuple> {
        self.known.keys().copied().collect()
    }

    /// Number of connections.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Frees the indexes of all connections that are not among these, if `is_gone`: the list may
    /// miss some.
    pub(crate) fn keep(
        &mut self,
        entries: &HashSet<Tuple>,
        is_gone: impl Fn(&Tuple) -> bool,
    ) -> Result<()> {
        let gone = self.known.keys().filter(|tuple| !entries.contains(*tuple) && is_gone(tuple));
        for tuple in gone.copied().collect::<Vec<_>>() {
            self.free(&tuple)?;
        }
        Ok(())
    }

    /// Frees the index of a connection.
    pub(crate) fn free(&mut self, original: &Tuple) -> Result<()> {
        let Some((window, reply)) = self.known.remove(original) else { return Ok(()) };
        for tuple in [original, &reply] {
            // Already absent, if the map was full.
            let _ = self.tracked.delete(&key(tuple));
        }
        // A verdict may still name the index; its serial number is then outdated.
        self.write(Window { serial: 0, ..window }, CONNECTION_NONE)?;
        self.free.push(window.connection);
        Ok(())
    }

    fn state(&self, window: Window) -> Result<u32> {
        let found = self.connections.lookup(&window.connection.to_ne_bytes(), MapFlags::LOCK);
        let found = found.map_err(|error| failed("read", "map connections", error.to_string()))?;
        let found = found.and_then(|bytes| RawConnection::read_from_bytes(&bytes).ok());
        Ok(found
            .filter(|found| found.serial == window.serial)
            .map_or(CONNECTION_NONE, |found| found.state))
    }

    fn write(&self, window: Window, state: u32) -> Result<()> {
        let value = RawConnection { serial: window.serial, state, ..RawConnection::default() };
        self.connections
            .update(&window.connection.to_ne_bytes(), &abi::bytes(&value), MapFlags::LOCK)
            .map_err(|error| failed("update", "map connections", error.to_string()))
    }
}

fn key(tuple: &Tuple) -> Vec<u8> {
    abi::bytes(&RawFlowKey {
        netns: 0,
        device: 0,
        source: abi::four_words(tuple.source.0),
        dest: abi::four_words(tuple.destination.0),
        source_port: tuple.source.1.to_be_bytes(),
        dest_port: tuple.destination.1.to_be_bytes(),
        protocol: tuple.protocol,
        ipv6: tuple.source.0.is_ipv6().into(),
        place: FLOW_TRACKED as u16,
    })
}
