//! One direction of one queue: reads, translates and writes frames.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use packet::ethernet;
use packet::segment::{Policy, Segmenter, TransportChecksum};
use packet::vnet_hdr::{Gso, GsoKind, VnetHdr, flags, gso_type};
use sys::tap::Offload;

use super::Side;
use super::netmap::{Netmap, NetmapOutcome};
use super::queue::Queue;
use crate::counters::{DropReason, Tally};
use crate::vnet_layout::{HEADER, LAYOUT};
use crate::{Error, Result};

/// Size for a vnet header, Ethernet with two tags, and the longest IP packet, rounded up to a whole
/// number of pages.
pub(crate) const BUFFER: usize = 17 * 4096;
const _: () = assert!(BUFFER >= HEADER + ethernet::HEADER_LEN + 8 + 65_536);

/// How long a guest without free buffers may take to offer some. Meanwhile the source is not read,
/// so that the sender's own queue fills, as it does for a busy device. After that, frames are
/// dropped until there are buffers.
pub(super) const PATIENCE_MS: u16 = 20;

/// Moves frames from one queue to the opposite one.
#[derive(Debug)]
pub(super) struct Forwarder {
    from: Queue,
    to: Queue,
    /// The side `from` is on.
    side: Side,
    netmap: Option<Netmap>,
    /// Offloads that `from` can produce; `None`: its headers are not trusted.
    gives: Option<Offload>,
    /// Length of a frame in `buffer` that waits for a guest's buffers, and since when.
    held: Option<(usize, Instant)>,
    /// Whether the wait has timed out and there were no buffers since.
    stalled: bool,
    buffer: Box<[u8]>,
    /// Buffer for segments; empty if nothing has to be segmented.
    piece: Box<[u8]>,
    counters: Arc<Tally>,
}

/// Whether a queue may hold more frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pumped {
    /// It was read until it was empty.
    Dry,
    /// The budget was used up first.
    More,
    /// A frame waits for buffers.
    Blocked,
}

/// NetmapOutcome of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Forwarded, answered or dropped, and counted.
    Settled,
    /// None yet: the guest has no free buffers.
    NoRoom,
}

impl Forwarder {
    pub(super) fn new(
        from: Queue,
        to: Queue,
        side: Side,
        netmap: Option<Netmap>,
        counters: Arc<Tally>,
    ) -> Forwarder {
        let gives = from.tap().map(|_| from.takes());
        // The offloads of a guest are known only after it has connected.
        let takes_all = to.tap().is_some() && gives.is_some_and(|g| to.takes().contains(g));
        let buffer = vec![0; BUFFER].into_boxed_slice();
        let piece = vec![0; if takes_all { 0 } else { BUFFER }].into_boxed_slice();
        let (held, stalled) = (None, false);
        Forwarder { from, to, side, netmap, gives, held, stalled, buffer, piece, counters }
    }

    /// Moves the queued frames, at most `budget`.
    ///
    /// # Errors
    /// [`Error::Vanished`].
    pub(super) fn pump(&mut self, budget: usize) -> Result<Pumped> {
        // Taken out of `self`, so that a frame in it can be passed to methods of `self`.
        let mut buffer = std::mem::take(&mut self.buffer);
        let pumped = self.pump_by(&mut buffer, budget);
        self.buffer = buffer;
        pumped
    }

    fn pump_by(&mut self, buffer: &mut [u8], budget: usize) -> Result<Pumped> {
        // The frame that waits for buffers goes first, so that the order is kept.
        if let Some((length, since)) = self.held {
            self.stalled = since.elapsed() >= Duration::from_millis(PATIENCE_MS.into());
            if self.forward(&buffer[..length])? == Fate::NoRoom {
                return Ok(Pumped::Blocked);
            }
            self.held = None;
        }
        for _ in 0..budget {
            match self.from.read(buffer) {
                Ok(length) => {
                    if self.judge(&mut buffer[..length])? == Fate::NoRoom {
                        self.held = Some((length, Instant::now()));
                        return Ok(Pumped::Blocked);
                    }
                }
                Err(error) => match errno(&error) {
                    Errno::EAGAIN => return Ok(Pumped::Dry),
                    // A signal interrupted the call; nothing was read.
                    Errno::EINTR => {}
                    // The frame was longer than the buffer, and the rest is lost.
                    Errno::EMSGSIZE => {
                        self.counters.receive(0);
                        self.counters.discard(DropReason::Truncated, 1);
                    }
                    // EBADFD is the kernel's error for a deleted TAP device.
                    Errno::EBADFD => return Err(Error::Vanished(self.from.name().to_owned())),
                    other => {
                        return Err(sys::Error::new("read", self.from.name(), other).into());
                    }
                },
            }
        }
        Ok(Pumped::More)
    }

    /// Returns the queue that frames come from.
    pub(super) fn source(&self) -> &Queue {
        &self.from
    }

    /// Returns whether a frame waits for buffers.
    pub(super) fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Forwards a frame, including its header.
    ///
    /// # Errors
    /// [`Error::Vanished`].
    pub(super) fn frame(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.judge(bytes).map(drop)
    }

    /// Counts a frame, validates it and forwards it.
    fn judge(&mut self, bytes: &mut [u8]) -> Result<Fate> {
        let length = bytes.len();
        let counters = &self.counters;
        counters.receive(length.saturating_sub(HEADER));
        // Headers from a guest are checked; the kernel's own are valid.
        if length < HEADER + ethernet::HEADER_LEN || (self.gives.is_none() && !sane(bytes)) {
            counters.discard(DropReason::Malformed, 1);
            return Ok(Fate::Settled);
        }
        if let Some(netmap) = &self.netmap {
            let (header, frame) = bytes.split_at_mut(HEADER);
            let Ok(header) = VnetHdr::parse(header, LAYOUT) else {
                counters.discard(DropReason::Malformed, 1);
                return Ok(Fate::Settled);
            };
            match netmap.translate(self.side, &header, frame) {
                Ok(NetmapOutcome::Translated) => {}
                // The requested host is behind the bridge, which answers for it.
                Ok(NetmapOutcome::ArpRequest) => return self.answer(bytes).map(|()| Fate::Settled),
                Err(_) => {
                    counters.discard(DropReason::Malformed, 1);
                    return Ok(Fate::Settled);
                }
            }
        }
        self.forward(bytes)
    }

    /// Forwards a validated frame.
    fn forward(&mut self, bytes: &[u8]) -> Result<Fate> {
        // The target supports everything that this source produces: no need to look at the frame.
        if self.gives.is_some_and(|gives| self.to.takes().contains(gives)) {
            let written = self.to.write(bytes);
            return self.written(written, bytes.len() - HEADER);
        }
        self.adapt(bytes)
    }

    /// Answers an ARP request with the address of the device that represents the requested host.
    fn answer(&self, bytes: &mut [u8]) -> Result<()> {
        // A device without an address is being deleted.
        let Ok(address) = self.to.hardware_address() else {
            return Err(Error::Vanished(self.to.name().to_owned()));
        };
        let (header, frame) = bytes.split_at_mut(HEADER);
        // A malformed request has no valid answer, and no owner behind the bridge.
        let Some(answer) = Netmap::answer(frame, packet::ethernet::MacAddr(address)) else {
            self.counters.discard(DropReason::Malformed, 1);
            return Ok(());
        };
        // An ARP answer has neither a checksum to complete nor segments.
        header.fill(0);
        match self.from.write(&bytes[..HEADER + answer]) {
            Ok(_) => self.counters.answer(),
            Err(error) => self.counters.discard(DropReason::of_write(&error), 1),
        }
        Ok(())
    }

    fn written(&mut self, written: io::Result<usize>, bytes: usize) -> Result<Fate> {
        match written {
            Ok(_) => {
                self.stalled = false;
                self.counters.forward(1, bytes as u64);
            }
            Err(error) => match errno(&error) {
                // A removed device does not come back.
                Errno::EBADFD => return Err(Error::Vanished(self.to.name().to_owned())),
                // The guest will provide buffers again, so the frame waits.
                Errno::EAGAIN if self.to.guest().is_some() && !self.stalled => {
                    return Ok(Fate::NoRoom);
                }
                // Drop the frame, as a wire would lose it.
                _ => self.counters.discard(DropReason::of_write(&error), 1),
            },
        }
        Ok(Fate::Settled)
    }

    /// Writes a frame to a device that does not support all offloads: unchanged if the device
    /// supports those that this frame needs, otherwise segmented and with complete checksums.
    fn adapt(&mut self, bytes: &[u8]) -> Result<Fate> {
        let length = bytes.len();
        let (header, frame) = bytes.split_at(HEADER);
        let drop = |reason| {
            self.counters.discard(reason, 1);
            Ok(Fate::Settled)
        };
        let Ok(header) = VnetHdr::parse(header, LAYOUT) else {
            return drop(DropReason::Malformed);
        };
        // An unknown GSO type cannot be segmented here.
        let Ok(gso) = header.gso() else { return drop(DropReason::Uncuttable) };
        let takes = self.to.takes();
        // This frame needs only offloads that the target supports.
        if takes.contains(needed(&header, gso.as_ref())) {
            let written = self.to.write(bytes);
            return self.written(written, length - HEADER);
        }
        let partial = takes.contains(Offload::CSUM);
        let checksum = if partial { TransportChecksum::Partial } else { TransportChecksum::Full };
        let policy = Policy { checksum, ..Policy::default() };
        let Ok(segments) = Segmenter::with_policy(frame, &header, policy) else {
            return drop(DropReason::Uncuttable);
        };
        // A frame that waited for buffers was counted when it arrived.
        if gso.is_some() && self.held.is_none() {
            self.counters.cut(segments.count());
        }
        for index in 0..segments.count() {
            let (front, piece) = self.piece.split_at_mut(HEADER);
            let emitted = segments.header(index).emit(LAYOUT, front);
            let (Ok(_), Ok(piece)) = (emitted, segments.write(index, piece)) else {
                // Unreachable: a segment is no longer than the frame.
                self.counters.discard(DropReason::Uncuttable, 1);
                return Ok(Fate::Settled);
            };
            // The rest of a GSO packet that lost a segment is of little use. Dropping it gives a
            // full queue time to drain.
            if let Err(error) = self.to.write(&self.piece[..HEADER + piece]) {
                // A guest that received some segments must not receive them again.
                self.stalled |= index > 0;
                return self.written(Err(error), length - HEADER);
            }
        }
        self.stalled = false;
        self.counters.forward(1, (length - HEADER) as u64);
        Ok(Fate::Settled)
    }
}

/// Returns whether a guest's header may be passed to a device. Clears flags that only a device may
/// set. Each receiver validates segments itself.
pub(crate) fn sane(bytes: &mut [u8]) -> bool {
    const TUNNEL: u8 = gso_type::UDP_TUNNEL_IPV4 | gso_type::UDP_TUNNEL_IPV6;
    let (front, frame) = bytes.split_at_mut(HEADER);
    front[0] &= flags::NEEDS_CSUM;
    let Ok(header) = VnetHdr::parse(front, LAYOUT) else { return false };
    // The checksum field must be inside the frame.
    let end = usize::from(header.csum_start) + usize::from(header.csum_offset) + 2;
    let checksum = !header.needs_csum() || end <= frame.len();
    checksum && header.gso_type & TUNNEL == 0 && header.gso().is_ok()
}

/// Returns the offloads that a device needs for this frame to be written unsegmented.
pub(crate) fn needed(header: &VnetHdr, gso: Option<&Gso>) -> Offload {
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
