//! Entry points for fuzzing the endpoint. Each function accepts any bytes, must not panic, and
//! asserts the invariants.
//!
//! libFuzzer calls them from `fuzz/fuzz_targets/`. The tests here run a limited number of cases
//! with a stable compiler.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use packet::ethernet::MacAddr;
use packet::vnet_hdr::{Layout, VnetHdr};
use packet::vxlan::{self, Vni};

use super::config::{Config, Entries, MTU, NetworkConfig, REMOTES_MAX, REPLICATION_MAX};
use super::neighbour::{self, Claim, Question};
use super::network::{Network, Policy};
use super::place::Place;
use super::receive::{Intake, Message};
use super::thread_network::{ThreadNetwork, Writer};
use crate::counters::{Counters, DropReason, Tally};

pub(super) const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// The other accepted remote endpoint.
pub(super) const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 4));
pub(super) const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
pub(super) const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(super) const ELSEWHERE: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const TAP_MTU: u32 = 1450;

/// Checks that a configuration that parses is valid and within its limits.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(config) = Config::parse(text) else { return };
    assert_eq!(config.validate(), Ok(()));
    assert!(config.ttl > 0 && config.port > 0 && config.queues > 0);
    let mut vnis: Vec<_> = config.networks.iter().map(|network| network.vni).collect();
    vnis.sort_unstable();
    vnis.dedup();
    assert_eq!(vnis.len(), config.networks.len());
    for network in &config.networks {
        let of_family =
            |remote: &IpAddr| remote.is_ipv4() == config.local.is_ipv4() && *remote != config.local;
        assert!(network.remotes.iter().chain(network.replication()).all(of_family));
        assert!(network.remotes.iter().all(|remote| !remote.is_multicast()));
        assert!(network.group.is_none_or(|group| network.replication() == [group]));
        assert!(network.remotes.len() <= REMOTES_MAX);
        assert!(network.replication().len() <= REPLICATION_MAX);
        assert!(network.mtu.is_none_or(|mtu| MTU.contains(&mtu)));
        let entries = network.entries().unwrap();
        assert!(entries.fdb.iter().all(|(mac, remote)| mac.is_unicast() && of_family(remote)));
        assert!(entries.neighbours.iter().all(|(_, mac)| mac.is_unicast()));
        let policy = Policy::without_paths(network);
        let made = Network::new(network, &entries, policy, TAP_MTU);
        assert_eq!(made.fdb.count(), (entries.fdb.len(), 0));
        assert_eq!(made.neighbours.count(), (entries.neighbours.len(), 0));
    }
}

/// Receives datagrams and frames of the second TAP, each preceded by four bytes that describe how
/// it arrived. Checks that every packet has one outcome, that nothing is sent to the wire, and that
/// no more is written than was received.
pub fn receive(mut data: &[u8]) {
    let mut bench = Bench::new();
    let mut packets = 0;
    while let Some((head, rest)) = data.split_first_chunk::<4>() {
        let [how, tos, low, high] = *head;
        // The rest of a short input is one packet.
        let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        data = rest;
        let from = if how & 1 == 0 { REMOTE } else { STRANGER };
        // Merged datagrams whose segment size comes from the bytes.
        let segment =
            (how & 2 != 0 && length > 1).then(|| u16::from_le_bytes([bytes[0], bytes[1]]) % 512);
        if how & 4 == 0 {
            packets += match segment.map(usize::from).filter(|size| (1..length).contains(size)) {
                Some(size) => length.div_ceil(size),
                None => 1,
            };
            let mut bytes = bytes.to_vec();
            let truncated = how & 8 != 0;
            let message = Message { from, tos, segment, truncated, bytes: &mut bytes };
            bench.intake.message(&bench.thread_networks, &bench.unassigned, message, how.into());
        } else {
            let mut bytes = bytes.to_vec();
            // Packets merged by the kernel are marked in the vnet header.
            let vnet = packet::vnet_hdr::split(&bytes, Layout::Tunnel).ok();
            let size = vnet.map_or(0, |(vnet, _)| usize::from(vnet.gso_size));
            packets += if size > 0 { length.div_ceil(size) } else { 1 };
            bench.intake.encapsulated(
                &bench.thread_networks,
                &bench.unassigned,
                &mut bytes,
                vxlan::PORT,
                how.into(),
            );
        }
        if how & 16 != 0 {
            bench.intake.flush(&bench.thread_networks);
        }
    }
    bench.intake.flush(&bench.thread_networks);
    bench.check();
    let tallies = bench
        .thread_networks
        .iter()
        .map(|thread_network| &*thread_network.back)
        .chain([&bench.unassigned]);
    let all = Counters::sum(tallies);
    assert!(all.received <= packets as u64, "{packets} came, {all:?}");
    assert!(all.forwarded <= all.received);
    let written: usize = (0..bench.thread_networks.len())
        .map(|thread_network| bench.written(thread_network).len())
        .sum();
    assert!(written as u64 <= all.forwarded, "{written} written, {all:?}");
}

/// Processes frames of tenants on both sides, each preceded by three bytes for side, time and
/// length. Checks that only requests are answered, on behalf of owners at remote endpoints, and
/// that the tables keep their limits.
pub fn neighbours(mut data: &[u8]) {
    let thread_networks = thread_networks();
    let thread_network = &thread_networks[0];
    let (network, policy) = (&thread_network.network, &thread_network.policy);
    let mut now = 0;
    while let Some((head, rest)) = data.split_first_chunk::<3>() {
        let [how, later, length] = *head;
        let (frame, rest) = rest.split_at(usize::from(length).min(rest.len()));
        data = rest;
        now += u32::from(later);
        let Ok(link) = packet::ethernet::Ethernet::parse(frame) else { continue };
        if !link.source().is_unicast() {
            continue;
        }
        let place = if how & 1 == 0 { Place::Local } else { Place::Remote(REMOTE) };
        network.learn(policy, link.source(), place, now);
        let Some(resolving) = neighbour::examine(frame) else { continue };
        if let Some(claim) = resolving.claim {
            network.notice(policy, claim, place, now);
        }
        assert!(network.neighbours.count().1 <= 4);
        let Some(Question::Who(who)) = resolving.question else { continue };
        assert!(link.destination().is_multicast() && who.mac == link.source());
        let Ok(owner) = network.resolve(policy, &who, now) else { continue };
        assert!(matches!(network.find(policy, owner.mac, now), Some(Place::Remote(_))));
        assert_ne!(owner.mac, who.mac);
        let mut answer = [0; neighbour::ANSWER_LEN];
        let length = who.answer(&owner, &mut answer);
        // A receiver of the answer learns exactly the owner.
        let examined = neighbour::examine(&answer[..length]).unwrap();
        assert_eq!(examined.claim, Some(Claim::Has(who.address(), owner)));
        assert_eq!(examined.question, None);
    }
}

/// Returns networks 10 and 11, with writers that keep the frames.
fn thread_networks() -> Vec<ThreadNetwork> {
    [10, 11]
        .into_iter()
        .map(|vni| {
            let config = NetworkConfig {
                remotes: vec![REMOTE, OTHER],
                max_learned: 4,
                max_learned_per_remote: Some(3),
                max_moves: 1,
                neigh_suppress: true,
                max_neighbours: 4,
                ..NetworkConfig::new(Vni::new(vni).unwrap(), format!("tap{vni}"))
            };
            let policy = Policy::without_paths(&config);
            let entries = Entries { fdb: vec![(ELSEWHERE, STRANGER)], ..Entries::default() };
            let network = Arc::new(Network::new(&config, &entries, policy, TAP_MTU));
            ThreadNetwork {
                policy: network.policy(),
                generation: 0,
                network,
                tap: Writer::Nowhere(RefCell::default()),
                own: OWN,
                out: Arc::default(),
                back: Arc::default(),
            }
        })
        .collect()
}

/// The receiving side without a kernel. It keeps the frames that it writes.
pub(super) struct Bench {
    pub(super) thread_networks: Vec<ThreadNetwork>,
    pub(super) unassigned: Tally,
    pub(super) intake: Intake,
}

impl Bench {
    pub(super) fn new() -> Bench {
        Bench {
            thread_networks: thread_networks(),
            unassigned: Tally::default(),
            intake: Intake::new(true, true),
        }
    }

    #[cfg(test)]
    pub(super) fn take(&mut self, from: IpAddr, tos: u8, segment: Option<u16>, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let message = Message { from, tos, segment, truncated: false, bytes: &mut bytes };
        self.intake.message(&self.thread_networks, &self.unassigned, message, 1);
        self.intake.flush(&self.thread_networks);
    }

    /// Returns the reasons of drops, and checks that the counters add up.
    pub(super) fn check(&self) -> Vec<DropReason> {
        let mut reasons = Vec::new();
        for tally in self
            .thread_networks
            .iter()
            .map(|thread_network| &*thread_network.back)
            .chain([&self.unassigned])
        {
            let c = Counters::sum([tally].into_iter());
            assert_eq!(c.received, c.forwarded + c.answered + c.dropped(), "{c:?}");
            reasons.extend(DropReason::ALL.into_iter().filter(|r| c.dropped_by(*r) > 0));
        }
        for thread_network in &self.thread_networks {
            let out = Counters::sum([&*thread_network.out].into_iter());
            assert_eq!(out, Counters::default(), "nothing may go to the wire");
            assert!(thread_network.network.fdb.count().1 <= 8);
            assert!(thread_network.network.neighbours.count().1 <= 4);
        }
        reasons
    }

    /// Receives a complete frame of the underlay, as the second TAP delivers it.
    #[cfg(test)]
    pub(super) fn take_encapsulated(&mut self, vnet: &VnetHdr, frame: &[u8]) {
        let mut bytes = [&vnet.to_bytes()[..], frame].concat();
        self.intake.encapsulated(
            &self.thread_networks,
            &self.unassigned,
            &mut bytes,
            vxlan::PORT,
            1,
        );
        self.intake.flush(&self.thread_networks);
    }

    pub(super) fn written(&self, thread_network: usize) -> Vec<(VnetHdr, Vec<u8>)> {
        let Writer::Nowhere(written) = &self.thread_networks[thread_network].tap else {
            unreachable!()
        };
        let parse = |(header, frame): &([u8; 24], Vec<u8>)| {
            (VnetHdr::parse(header, Layout::Tunnel).unwrap(), frame.clone())
        };
        written.borrow().iter().map(parse).collect()
    }
}
