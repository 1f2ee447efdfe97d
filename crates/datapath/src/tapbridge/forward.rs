//! One direction of one queue: a frame read, translated, written.

use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use packet::ethernet;
use packet::segment::{Policy, Segmenter, TransportChecksum};
use packet::vnet_hdr::{Gso, GsoKind, VnetHdr, flags, gso_type};
use sys::tap::{Offload, Tap};

use super::Side;
use super::netmap::{Netmap, Outcome};
use super::port::LAYOUT;
use crate::counters::{DropReason, Tally};
use crate::{Error, Result};

/// Bytes before each frame.
const HEADER: usize = LAYOUT.size();

/// Header, Ethernet with two tags, and the longest IP packet; rounded up to a
/// whole number of pages.
pub(super) const BUFFER: usize = 17 * 4096;
const _: () = assert!(BUFFER >= HEADER + ethernet::HEADER_LEN + 8 + 65_536);

/// Moves frames from one queue to the opposite one.
#[derive(Debug)]
pub(super) struct Forwarder {
    from: Arc<Tap>,
    to: Arc<Tap>,
    /// The side `from` is on.
    side: Side,
    netmap: Option<Netmap>,
    /// What `to` takes uncut.
    takes: Offload,
    /// Whether that is all that `from` can give.
    takes_all: bool,
    buffer: Box<[u8]>,
    /// For what has to be cut; empty where nothing has.
    piece: Box<[u8]>,
    counters: Arc<Tally>,
}

/// Whether a queue may hold more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pumped {
    /// It was read until it was empty.
    Dry,
    /// The budget ended first.
    More,
}

impl Forwarder {
    pub(super) fn new(
        from: Arc<Tap>,
        gives: Offload,
        to: Arc<Tap>,
        takes: Offload,
        side: Side,
        netmap: Option<Netmap>,
        counters: Arc<Tally>,
    ) -> Forwarder {
        let takes_all = takes.contains(gives);
        let buffer = vec![0; BUFFER].into_boxed_slice();
        let piece = vec![0; if takes_all { 0 } else { BUFFER }].into_boxed_slice();
        Forwarder { from, to, side, netmap, takes, takes_all, buffer, piece, counters }
    }

    /// Moves what is there, `budget` frames at most.
    ///
    /// # Errors
    /// [`Error::Vanished`].
    pub(super) fn pump(&mut self, budget: usize) -> Result<Pumped> {
        // Lent to each frame, beside what else a frame needs.
        let mut buffer = std::mem::take(&mut self.buffer);
        let pumped = self.pump_by(&mut buffer, budget);
        self.buffer = buffer;
        pumped
    }

    fn pump_by(&mut self, buffer: &mut [u8], budget: usize) -> Result<Pumped> {
        for _ in 0..budget {
            match self.from.read(buffer) {
                Ok(length) => self.frame(&mut buffer[..length])?,
                Err(error) => match errno(&error) {
                    Errno::EAGAIN => return Ok(Pumped::Dry),
                    Errno::EINTR => {}
                    Errno::EBADFD => return Err(Error::Vanished(self.from.name().to_owned())),
                    other => {
                        return Err(sys::Error::new("read", self.from.name(), other).into());
                    }
                },
            }
        }
        Ok(Pumped::More)
    }

    /// The queue that frames come from.
    pub(super) fn source(&self) -> &Tap {
        &self.from
    }

    /// Forwards a frame, header included.
    ///
    /// # Errors
    /// [`Error::Vanished`].
    pub(super) fn frame(&mut self, bytes: &mut [u8]) -> Result<()> {
        let length = bytes.len();
        let counters = &self.counters;
        counters.receive(length.saturating_sub(HEADER));
        if length < HEADER + ethernet::HEADER_LEN {
            counters.discard(DropReason::Malformed, 1);
            return Ok(());
        }
        if let Some(netmap) = &self.netmap {
            let (header, frame) = bytes.split_at_mut(HEADER);
            let Ok(header) = VnetHdr::parse(header, LAYOUT) else {
                counters.discard(DropReason::Malformed, 1);
                return Ok(());
            };
            match netmap.translate(self.side, &header, frame) {
                Ok(Outcome::Translated) => {}
                Ok(Outcome::ArpRequest) => return self.answer(bytes),
                Err(_) => {
                    counters.discard(DropReason::Malformed, 1);
                    return Ok(());
                }
            }
        }
        if self.takes_all {
            let written = self.to.write(bytes);
            return self.written(written, length - HEADER);
        }
        self.adapt(bytes)
    }

    /// Answers an ARP request with the address of the device that stands for
    /// the one asked for.
    fn answer(&self, bytes: &mut [u8]) -> Result<()> {
        let Ok(address) = self.to.hardware_address() else {
            return Err(Error::Vanished(self.to.name().to_owned()));
        };
        let (header, frame) = bytes.split_at_mut(HEADER);
        let Some(answer) = Netmap::answer(frame, packet::ethernet::MacAddr(address)) else {
            self.counters.discard(DropReason::Malformed, 1);
            return Ok(());
        };
        header.fill(0);
        match self.from.write(&bytes[..HEADER + answer]) {
            Ok(_) => self.counters.answer(),
            Err(error) => self.counters.discard(DropReason::of_write(&error), 1),
        }
        Ok(())
    }

    /// Counts a write's outcome.
    fn written(&self, written: io::Result<usize>, bytes: usize) -> Result<()> {
        match written {
            Ok(_) => self.counters.forward(1, bytes as u64),
            // A wire would lose the frame, too; but a device that is gone stays gone.
            Err(error) if errno(&error) == Errno::EBADFD => {
                return Err(Error::Vanished(self.to.name().to_owned()));
            }
            Err(error) => self.counters.discard(DropReason::of_write(&error), 1),
        }
        Ok(())
    }

    /// Writes a frame to a device that does not take everything uncut: as it is
    /// if this one it takes, else in pieces and with finished checksums.
    fn adapt(&mut self, bytes: &[u8]) -> Result<()> {
        let length = bytes.len();
        let (header, frame) = bytes.split_at(HEADER);
        let Ok(header) = VnetHdr::parse(header, LAYOUT) else {
            self.counters.discard(DropReason::Malformed, 1);
            return Ok(());
        };
        let Ok(gso) = header.gso() else {
            self.counters.discard(DropReason::Uncuttable, 1);
            return Ok(());
        };
        if self.takes.contains(needed(&header, gso.as_ref())) {
            let written = self.to.write(bytes);
            return self.written(written, length - HEADER);
        }
        let partial = self.takes.contains(Offload::CSUM);
        let checksum = if partial { TransportChecksum::Partial } else { TransportChecksum::Full };
        let policy = Policy { checksum, ..Policy::default() };
        let Ok(segments) = Segmenter::with_policy(frame, &header, policy) else {
            self.counters.discard(DropReason::Uncuttable, 1);
            return Ok(());
        };
        if gso.is_some() {
            self.counters.cut(segments.count());
        }
        for index in 0..segments.count() {
            let (front, piece) = self.piece.split_at_mut(HEADER);
            let emitted = segments.header(index).emit(LAYOUT, front);
            let (Ok(_), Ok(piece)) = (emitted, segments.write(index, piece)) else {
                // Cannot be: a piece is no longer than the frame.
                self.counters.discard(DropReason::Uncuttable, 1);
                return Ok(());
            };
            // The rest of a GSO packet that lost a piece is of little use to
            // anyone; a queue that is full gets time to drain.
            if let Err(error) = self.to.write(&self.piece[..HEADER + piece]) {
                return self.written(Err(error), length - HEADER);
            }
        }
        self.counters.forward(1, (length - HEADER) as u64);
        Ok(())
    }
}

/// What a device must take for this frame to be written uncut.
fn needed(header: &VnetHdr, gso: Option<&Gso>) -> Offload {
    let mut needed = if header.needs_csum() { Offload::CSUM } else { Offload::NONE };
    let Some(gso) = gso else { return needed };
    needed |= match gso.kind {
        GsoKind::TcpV4 => Offload::TSO4,
        GsoKind::TcpV6 => Offload::TSO6,
        GsoKind::Udp => Offload::USO4 | Offload::USO6,
    };
    if header.gso_type & gso_type::ECN != 0 {
        needed |= Offload::TSO_ECN;
    }
    if gso.tunnel.is_some() {
        needed |= Offload::UDP_TUNNEL_GSO;
        if header.flags & flags::UDP_TUNNEL_CSUM != 0 {
            needed |= Offload::UDP_TUNNEL_GSO_CSUM;
        }
    }
    needed
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}
