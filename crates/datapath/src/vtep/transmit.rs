//! From the TAP to the wire.
//!
//! A GSO packet is segmented into one buffer, each segment with its VXLAN header, and passed to the
//! kernel in as few calls as possible (`UDP_SEGMENT`, 64 datagrams). Consecutive frames of the same
//! length to the same endpoint are combined in the same way, so that a burst of small packets
//! becomes one super-datagram, too. Nothing is delayed for this: everything is sent as soon as the
//! TAP is empty.
//!
//! If the second TAP accepts the packet ([`super::handover`]), it is not segmented. It is written
//! there with its outer headers, after all queued datagrams, so that the order is kept.

use std::net::IpAddr;
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::PollTimeout;
use packet::ecn::{Ecn, Ingress};
use packet::encap;
use packet::ethernet::{self, Ethernet};
use packet::flow;
use packet::segment::Segmenter;
use packet::vnet_hdr::{self, VnetHdr};
use packet::vxlan;
use sys::datagram::{Outgoing, SendSlots, wait_writable};
use sys::udp::{MAX_PAYLOAD, MAX_SEGMENTS};

use super::icmp_too_big;
use super::neighbour::{self, Question};
use super::place::Place;
use super::table::Learned;
use super::thread_network::ThreadNetwork;
use super::underlay::Underlay;
use crate::counters::{DropReason, Resolution};
use crate::vnet_layout::{HEADER, LAYOUT};

/// Buffer for datagrams that wait for the system call, bytes.
const BUFFER: usize = 512 << 10;

/// Number of queued datagrams that triggers sending.
const QUEUE: usize = 256;

/// Messages per system call.
const SLOTS: usize = 64;

/// How long to wait for room in a full socket buffer. A NIC drains it within microseconds.
/// Meanwhile the TAP's queue fills, as that of a NIC would.
const PATIENCE_MS: u16 = 20;

/// A queued super-datagram.
#[derive(Debug)]
struct Queued {
    message: Outgoing,
    socket: usize,
    /// Length of each datagram in it, except the last.
    stride: usize,
    count: usize,
    /// Whether the last datagram is shorter, so that no other can be appended.
    closed: bool,
    thread_network: usize,
    /// Frames whose outcome depends on this datagram, and their bytes.
    frames: u64,
    bytes: u64,
    /// Copies of frames whose outcome depends on another datagram.
    replicas: u64,
}

/// Shape of a GSO packet that is passed on unsegmented.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Index of the socket of its flow, whose source port it gets.
    socket: usize,
    /// Length of each outer packet except the last, starting with the IP header.
    outer: usize,
    /// Number of outer packets that the GSO packet stands for.
    segments: usize,
}

/// How the outcome of a datagram affects its frame.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// The outcome of the frame: it is the last datagram of the last copy.
    Frame { bytes: u64 },
    /// The outcome of a copy: it is the last datagram of that copy.
    Replica,
    /// Nothing: more datagrams of the frame follow.
    Part,
}

/// Transmit state of one thread.
#[derive(Debug)]
pub(super) struct Transmitter {
    underlay: Arc<Underlay>,
    slots: SendSlots,
    buffer: Box<[u8]>,
    filled: usize,
    queue: Vec<Queued>,
    pieces: Vec<Outgoing>,
    /// Index of its queue of the second TAP.
    thread: usize,
    /// Outer IPv4 ID of the next GSO packet that is passed on unsegmented.
    id: u16,
    seed: u64,
}

impl Transmitter {
    pub(super) fn new(underlay: Arc<Underlay>, thread: usize, seed: u64) -> Transmitter {
        Transmitter {
            underlay,
            slots: SendSlots::new(SLOTS),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            filled: 0,
            queue: Vec::with_capacity(QUEUE),
            pieces: Vec::with_capacity(SLOTS),
            thread,
            id: 0,
            seed,
        }
    }

    /// Handles one frame from a TAP, with its vnet header.
    pub(super) fn frame(
        &mut self,
        thread_networks: &[ThreadNetwork],
        index: usize,
        bytes: &[u8],
        now: u32,
    ) {
        let thread_network = &thread_networks[index];
        let tally = &thread_network.out;
        tally.receive(bytes.len().saturating_sub(HEADER));
        let Ok((vnet, frame)) = vnet_hdr::split(bytes, LAYOUT) else {
            return tally.discard(DropReason::Malformed, 1);
        };
        let Ok(link) = Ethernet::parse(frame) else {
            return tally.discard(DropReason::Malformed, 1);
        };
        // A multicast address cannot be a source.
        if !link.source().is_unicast() {
            return tally.discard(DropReason::Source, 1);
        }
        let (network, policy) = (&thread_network.network, &thread_network.policy);
        match network.learn(policy, link.source(), Place::Local, now) {
            // A static entry locates the address elsewhere.
            Learned::Configured => return tally.discard(DropReason::Spoofed, 1),
            learned => tally.learn_of(learned),
        }
        // A frame with an incomplete checksum cannot be validated, so it is not answered here.
        if policy.suppresses() && !vnet.needs_csum() && self.resolve(thread_network, frame, now) {
            return;
        }
        let known = match network.find(policy, link.destination(), now) {
            Some(Place::Remote(remote)) if !link.destination().is_multicast() => Some(remote),
            // Local: the destination was last seen on this side, but it may have moved. So flood
            // the frame.
            _ => None,
        };
        let remotes = known.as_ref().map_or(&policy.replication[..], std::slice::from_ref);
        // Neither a learned place nor endpoints to replicate to.
        if remotes.is_empty() {
            return tally.discard(DropReason::NoRemote, 1);
        }
        let Ok(segments) = Segmenter::new(frame, &vnet) else {
            return tally.discard(DropReason::Uncuttable, 1);
        };
        let outer = self.underlay.headers() + segments.segment_len();
        if self.underlay.dont_fragment()
            && let Some(mtu) = self.exceeded(thread_network, remotes, outer, now)
        {
            return self.too_big(thread_network, frame, mtu);
        }
        let hash = flow::hash(frame, self.seed);
        let socket = ((u64::from(hash) * self.underlay.senders().len() as u64) >> 32) as usize;
        // Pass a GSO packet on unsegmented if every path and the length field of IP allow it.
        if vnet.gso_type != 0
            && self.underlay.headers() + frame.len() <= usize::from(u16::MAX)
            && remotes.iter().all(|remote| policy.whole(*remote, outer).is_some())
        {
            self.flush(thread_networks, now);
            let shape = Shape { socket, outer, segments: segments.count() };
            return self.hand_over(thread_network, remotes, frame, &vnet, shape);
        }
        let prefix = vxlan::header(network.vni);
        let total = segments.total_len(prefix.len());
        if total > self.buffer.len() {
            // Segments of only a few bytes each would need a much larger buffer.
            return tally.discard(DropReason::Uncuttable, 1);
        }
        if self.filled + total > self.buffer.len() || self.queue.len() >= QUEUE {
            self.flush(thread_networks, now);
        }
        let start = self.filled;
        let Ok(written) = segments.write_all(&prefix, &mut self.buffer[start..]) else {
            return tally.discard(DropReason::Uncuttable, 1);
        };
        self.filled += written.total;
        let inner_ecn = encap::tos(frame).map_or(Ecn::NotEct, Ecn::of);
        let tos = Ingress::Normal.outer(inner_ecn).on(0);
        // The last copy decides the outcome of the frame.
        for (copy, remote) in remotes.iter().enumerate() {
            let last = if copy + 1 == remotes.len() {
                Fate::Frame { bytes: frame.len() as u64 }
            } else {
                Fate::Replica
            };
            let to = self.underlay.peer(*remote);
            // The kernel limits the payload and the number of segments of a super-datagram.
            let group = (MAX_PAYLOAD / written.stride.max(1)).clamp(1, MAX_SEGMENTS);
            let mut at = start;
            while at < self.filled {
                let end = (at + group * written.stride).min(self.filled);
                let fate = if end == self.filled { last } else { Fate::Part };
                self.push(
                    Outgoing { to, range: at..end, segment: None, tos },
                    socket,
                    written.stride,
                    index,
                    fate,
                );
                at = end;
            }
        }
    }

    /// Answers a request for a neighbour; returns whether the frame is done.
    fn resolve(&self, thread_network: &ThreadNetwork, frame: &[u8], now: u32) -> bool {
        let (network, policy, tally) =
            (&thread_network.network, &thread_network.policy, &thread_network.out);
        // Neither ARP nor neighbour discovery.
        let Some(resolving) = neighbour::examine(frame) else { return false };
        if let Some(claim) = resolving.claim {
            network.notice(policy, claim, Place::Local, now);
        }
        let who = match resolving.question {
            None => return false,
            // The owner itself must defend its address, so the request is flooded.
            Some(Question::Duplicate) => {
                tally.resolve(Resolution::Duplicate);
                return false;
            }
            Some(Question::Who(who)) => who,
        };
        let owner = match network.resolve(policy, &who, now) {
            Ok(owner) => owner,
            Err(reason) => {
                tally.resolve(reason);
                return false;
            }
        };
        // Answer locally, so that the request is not flooded to every endpoint.
        let mut answer = [0; neighbour::ANSWER_LEN];
        let length = who.answer(&owner, &mut answer);
        match thread_network.tap.write(&[0; HEADER], &answer[..length]) {
            Ok(()) => {
                tally.answer();
                tally.resolve(match who.target {
                    IpAddr::V4(_) => Resolution::Arp,
                    IpAddr::V6(_) => Resolution::Discovery,
                });
            }
            Err(error) => tally.discard(DropReason::of_write(&error), 1),
        }
        true
    }

    /// Passes a GSO packet on unsegmented, once for each remote endpoint.
    fn hand_over(
        &mut self,
        thread_network: &ThreadNetwork,
        remotes: &[IpAddr],
        frame: &[u8],
        vnet: &VnetHdr,
        shape: Shape,
    ) {
        let tally = &thread_network.out;
        let port = self.underlay.source_port(shape.socket);
        let mut fate = Err(DropReason::Uncuttable);
        for (copy, remote) in remotes.iter().enumerate() {
            let (Some(second), Some(encap)) =
                (self.underlay.second_tap(), thread_network.policy.whole(*remote, shape.outer))
            else {
                // A route has changed since all of them were checked.
                fate = Err(DropReason::Unreachable);
                continue;
            };
            fate = match encap.headers_from(frame, vnet, port, self.id) {
                Ok(headers) => {
                    // Segmentation numbers the outer packets from this ID on.
                    self.id = self.id.wrapping_add(shape.segments as u16);
                    let header = headers.vnet.to_bytes();
                    let parts = [&header[..], headers.bytes(), frame].map(std::io::IoSlice::new);
                    let written = second.queue(self.thread).write_vectored(&parts);
                    written.map(drop).map_err(|error| DropReason::of_write(&error))
                }
                Err(_) => Err(DropReason::Uncuttable),
            };
            if fate.is_ok() {
                tally.hand_over();
            }
            // The last copy decides the outcome of the frame.
            if copy + 1 < remotes.len() {
                match fate {
                    Ok(()) => tally.replicate(1),
                    Err(_) => tally.lose_replicas(1),
                }
            }
        }
        match fate {
            Ok(()) => tally.forward(1, frame.len() as u64),
            Err(reason) => tally.discard(reason, 1),
        }
    }

    /// Returns the smallest path MTU to these endpoints if a packet exceeds it.
    fn exceeded(
        &self,
        thread_network: &ThreadNetwork,
        remotes: &[IpAddr],
        outer: usize,
        now: u32,
    ) -> Option<u32> {
        let least = || remotes.iter().map(|remote| thread_network.policy.path_mtu(*remote)).min();
        // Usual case: every path has room for the packet.
        if outer <= least()? as usize {
            return None;
        }
        // The path MTU may have grown again.
        for remote in remotes {
            thread_network.policy.probe(*remote, &self.underlay, now);
        }
        least().filter(|mtu| outer > *mtu as usize)
    }

    fn too_big(&self, thread_network: &ThreadNetwork, frame: &[u8], mtu: u32) {
        let tally = &thread_network.out;
        let overhead = (self.underlay.headers() + ethernet::HEADER_LEN) as u32;
        let mut answer = [0; icmp_too_big::MAX_LEN];
        let room = mtu.saturating_sub(overhead);
        // The sender cannot react, or must not be answered.
        let Some(length) = icmp_too_big::too_big(frame, room, &mut answer) else {
            return tally.discard(DropReason::TooBig, 1);
        };
        match thread_network.tap.write(&[0; HEADER], &answer[..length]) {
            Ok(()) => tally.answer(),
            Err(error) => tally.discard(DropReason::of_write(&error), 1),
        }
    }

    /// Queues datagrams of `stride` bytes each (the last may be shorter). Appends them to the
    /// previous entry if they match it.
    fn push(
        &mut self,
        message: Outgoing,
        socket: usize,
        stride: usize,
        thread_network: usize,
        fate: Fate,
    ) {
        let count = message.range.len().div_ceil(stride.max(1));
        let closed = !message.range.len().is_multiple_of(stride.max(1));
        let (frames, bytes, replicas) = match fate {
            Fate::Frame { bytes } => (1, bytes, 0),
            Fate::Replica => (0, 0, 1),
            Fate::Part => (0, 0, 0),
        };
        if let Some(before) = self.queue.last_mut()
            && !before.closed
            && count == 1
            && before.thread_network == thread_network
            && before.socket == socket
            && (before.message.to, before.message.tos) == (message.to, message.tos)
            && before.message.range.end == message.range.start
            && message.range.len() <= before.stride
            && before.count < MAX_SEGMENTS
            && before.message.range.len() + message.range.len() <= MAX_PAYLOAD
        {
            before.closed = message.range.len() < before.stride;
            before.message.range.end = message.range.end;
            before.message.segment = u16::try_from(before.stride).ok();
            before.count += 1;
            before.frames += frames;
            before.bytes += bytes;
            before.replicas += replicas;
            return;
        }
        let segment = if count > 1 { u16::try_from(stride).ok() } else { None };
        let message = Outgoing { segment, ..message };
        let queued = Queued {
            message,
            socket,
            stride,
            count,
            closed,
            thread_network,
            frames,
            bytes,
            replicas,
        };
        self.queue.push(queued);
    }

    /// Sends everything that is queued.
    pub(super) fn flush(&mut self, thread_networks: &[ThreadNetwork], now: u32) {
        let mut at = 0;
        let mut waited = false;
        while at < self.queue.len() {
            if self.queue[at].count > 1 && !self.underlay.cuts() {
                let sent = self.send_pieces(at);
                self.account(thread_networks, at, sent, now);
                at += 1;
                continue;
            }
            match self.send_run(at) {
                Ok(sent) => {
                    for index in at..at + sent {
                        self.account(thread_networks, index, Ok(()), now);
                    }
                    at += sent.max(1);
                    waited = false;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if !waited => {
                    waited = true;
                    self.wait(self.queue[at].socket);
                }
                Err(errno @ (Errno::EIO | Errno::EINVAL)) if self.queue[at].count > 1 => {
                    // EIO: the device computes no checksums (before Linux 6.11). EINVAL: a datagram
                    // exceeds the path MTU.
                    if errno == Errno::EIO {
                        self.underlay.cut_no_more();
                    }
                    let sent = self.send_pieces(at);
                    self.account(thread_networks, at, sent, now);
                    at += 1;
                }
                Err(errno) => {
                    self.account(thread_networks, at, Err(errno), now);
                    at += 1;
                    waited = false;
                }
            }
        }
        self.queue.clear();
        self.filled = 0;
    }

    /// Sends queued entries from `at` on that use the same socket; returns how many were accepted.
    fn send_run(&mut self, at: usize) -> Result<usize, Errno> {
        let (socket, cuts) = (self.queue[at].socket, self.underlay.cuts());
        let run = self.queue[at..]
            .iter()
            .take_while(|queued| queued.socket == socket && (cuts || queued.count == 1));
        let messages = run.map(|queued| &queued.message);
        self.slots.send(&self.underlay.senders()[socket], messages, &self.buffer)
    }

    /// Sends a super-datagram as single datagrams.
    fn send_pieces(&mut self, at: usize) -> Result<(), Errno> {
        let queued = &self.queue[at];
        let socket = &self.underlay.senders()[queued.socket];
        let Outgoing { to, ref range, tos, .. } = queued.message;
        self.pieces.clear();
        let mut start = range.start;
        while start < range.end {
            let end = (start + queued.stride).min(range.end);
            self.pieces.push(Outgoing { to, range: start..end, segment: None, tos });
            start = end;
        }
        // Wait at most once before each send, so that a full device does not block the thread.
        let (mut sent, mut waited) = (0, false);
        let mut outcome = Ok(());
        while sent < self.pieces.len() {
            match self.slots.send(socket, &self.pieces[sent..], &self.buffer) {
                Ok(count) => (sent, waited) = (sent + count.max(1), false),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if !waited => {
                    waited = true;
                    // An error shows in the next attempt.
                    let _ = wait_writable(socket, PollTimeout::from(PATIENCE_MS));
                }
                Err(errno) => {
                    // The first error decides the outcome of the frame. The remaining datagrams may
                    // still succeed.
                    outcome = outcome.and(Err(errno));
                    (sent, waited) = (sent + 1, false);
                }
            }
        }
        outcome
    }

    fn wait(&self, socket: usize) {
        // An error shows in the next attempt.
        let _ = wait_writable(&self.underlay.senders()[socket], PollTimeout::from(PATIENCE_MS));
    }

    fn account(
        &self,
        thread_networks: &[ThreadNetwork],
        at: usize,
        sent: Result<(), Errno>,
        now: u32,
    ) {
        let queued = &self.queue[at];
        let thread_network = &thread_networks[queued.thread_network];
        match sent {
            Ok(()) => {
                thread_network.out.hand_over();
                thread_network.out.forward(queued.frames, queued.bytes);
                thread_network.out.replicate(queued.replicas);
            }
            Err(errno) => {
                thread_network.out.discard(DropReason::of_send(errno), queued.frames);
                thread_network.out.lose_replicas(queued.replicas);
                if errno == Errno::EMSGSIZE {
                    thread_network.policy.probe(queued.message.to.ip(), &self.underlay, now);
                }
            }
        }
    }
}
