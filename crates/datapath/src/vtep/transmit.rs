//! From the TAP to the wire.
//!
//! A GSO packet is cut into one buffer, each segment behind a VXLAN header, and
//! handed to the kernel in as few calls as it takes (`UDP_SEGMENT`, 64 datagrams).
//! Frames that follow each other to the same end with the same length go the same
//! way, so that a burst of small packets is one super-datagram, too. Nothing waits
//! for company: what the TAP had is sent as soon as the TAP is empty.
//!
//! Where the second TAP takes it ([`super::handover`]), a GSO packet is not cut but
//! written there with its outer headers, after what waits, so that the order stays.

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

/// Bytes of datagrams that wait for the system call.
const BUFFER: usize = 512 << 10;

/// Datagrams that wait, before they are sent anyway.
const QUEUE: usize = 256;

/// Messages a system call.
const SLOTS: usize = 64;

/// How long a socket whose buffer is full may take to have room again; a NIC
/// needs microseconds. Meanwhile the TAP's queue fills, as a NIC's would.
const PATIENCE_MS: u16 = 20;

/// One super-datagram that waits.
#[derive(Debug)]
struct Queued {
    message: Outgoing,
    socket: usize,
    /// Length of each datagram in it but the last.
    stride: usize,
    count: usize,
    /// Whether its last datagram is shorter, so that none can follow.
    closed: bool,
    /// Index of the network.
    thread_network: usize,
    /// Frames whose fate it decides, and their bytes.
    frames: u64,
    bytes: u64,
    /// Copies of frames whose fate another decides.
    replicas: u64,
}

/// What becomes of a GSO packet that is handed over whole.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// The socket of its flow, whose source port it gets.
    socket: usize,
    /// Length of each outer packet but the last, from the IP header on.
    outer: usize,
    /// Number of outer packets that the GSO packet stands for.
    segments: usize,
}

/// What a datagram decides about its frame.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// Everything: it is the frame's last.
    Frame { bytes: u64 },
    /// It is the last of a copy.
    Replica,
    /// Nothing: more of the frame follows.
    Part,
}

/// One thread's way out.
#[derive(Debug)]
pub(super) struct Transmitter {
    underlay: Arc<Underlay>,
    slots: SendSlots,
    buffer: Box<[u8]>,
    filled: usize,
    queue: Vec<Queued>,
    pieces: Vec<Outgoing>,
    /// Whose queue of the second TAP.
    thread: usize,
    /// Outer IPv4 ID of the next GSO packet handed over whole.
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

    /// Takes one frame from a TAP, with its vnet header.
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
        if !link.source().is_unicast() {
            return tally.discard(DropReason::Source, 1);
        }
        let (network, policy) = (&thread_network.network, &thread_network.policy);
        match network.learn(policy, link.source(), Place::Local, now) {
            Learned::Configured => return tally.discard(DropReason::Spoofed, 1),
            learned => tally.learn_of(learned),
        }
        if policy.suppresses() && !vnet.needs_csum() && self.resolve(thread_network, frame, now) {
            return;
        }
        let known = match network.find(policy, link.destination(), now) {
            Some(Place::Remote(remote)) if !link.destination().is_multicast() => Some(remote),
            // Local: it has been here; whether it still is nobody knows.
            _ => None,
        };
        let remotes = known.as_ref().map_or(&policy.replication[..], std::slice::from_ref);
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
            // Segments of a few bytes each: not worth a buffer.
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
        // The last copy decides the frame's fate.
        for (copy, remote) in remotes.iter().enumerate() {
            let last = if copy + 1 == remotes.len() {
                Fate::Frame { bytes: frame.len() as u64 }
            } else {
                Fate::Replica
            };
            let to = self.underlay.peer(*remote);
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

    /// Answers a question for a neighbour; true if the frame need go nowhere.
    fn resolve(&self, thread_network: &ThreadNetwork, frame: &[u8], now: u32) -> bool {
        let (network, policy, tally) =
            (&thread_network.network, &thread_network.policy, &thread_network.out);
        let Some(resolving) = neighbour::examine(frame) else { return false };
        if let Some(claim) = resolving.claim {
            network.notice(policy, claim, Place::Local, now);
        }
        let who = match resolving.question {
            None => return false,
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

    /// Hands a GSO packet over whole, once for each remote end.
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
                // A route has changed since the look at all of them.
                fate = Err(DropReason::Unreachable);
                continue;
            };
            fate = match encap.headers_from(frame, vnet, port, self.id) {
                Ok(headers) => {
                    // Who cuts counts on from it.
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
            // The last copy decides the frame's fate.
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

    /// The least MTU among the paths to these ends, if a packet exceeds it.
    fn exceeded(
        &self,
        thread_network: &ThreadNetwork,
        remotes: &[IpAddr],
        outer: usize,
        now: u32,
    ) -> Option<u32> {
        let least = || remotes.iter().map(|remote| thread_network.policy.path_mtu(*remote)).min();
        if outer <= least()? as usize {
            return None;
        }
        // Paths may have become wider again.
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
        let Some(length) = icmp_too_big::too_big(frame, room, &mut answer) else {
            return tally.discard(DropReason::TooBig, 1);
        };
        match thread_network.tap.write(&[0; HEADER], &answer[..length]) {
            Ok(()) => tally.answer(),
            Err(error) => tally.discard(DropReason::of_write(&error), 1),
        }
    }

    /// Queues datagrams of `stride` bytes each (the last may be shorter), behind
    /// those before where they are of a kind.
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

    /// Sends all that waits.
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
                    // EIO: the device sums nothing (before Linux 6.11). EINVAL:
                    // a datagram is longer than the path takes.
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

    /// Sends what goes through the same socket from there on, as far as it is
    /// taken.
    fn send_run(&mut self, at: usize) -> Result<usize, Errno> {
        let (socket, cuts) = (self.queue[at].socket, self.underlay.cuts());
        let run = self.queue[at..]
            .iter()
            .take_while(|queued| queued.socket == socket && (cuts || queued.count == 1));
        let messages = run.map(|queued| &queued.message);
        self.slots.send(&self.underlay.senders()[socket], messages, &self.buffer)
    }

    /// Sends a super-datagram in datagrams.
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
                    // The first reason is the frame's; the others may still pass.
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
