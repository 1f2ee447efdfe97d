//! The Open vSwitch modes: their packets on the wire, under every offload profile and MTU, and the
//! end of their daemons.

use crate::traffic;
use crate::traffic::processes;

use std::collections::BTreeSet;

use lab::{Capabilities, Mode, Network, Params};
use netstate::Counters;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use processes::processes_in;
use test_support::{need, require};
use testbed::{NIC, Offload, Privileges};
use traffic::{LIMIT, echo, segmented_datagrams_arrive, stream_both_ways};

const EXCHANGES: u64 = 20;
/// Bytes of an ARP frame, the only packets of the hosts themselves, and only with kernel tunnels.
const ARP: u64 = 42;

/// The mode, or the reason why it cannot be built.
fn buildable(name: &str) -> Result<&'static dyn Mode, String> {
    need::networks()?;
    let mode = lab::find(name).unwrap();
    let probed = mode.probe(&Capabilities::new(Privileges::Root).unwrap());
    probed.map_err(|unsupported| format!("{name}: {}", unsupported.reason))?;
    Ok(mode)
}

fn built(mode: &dyn Mode, mtu: u32, offload: Offload) -> Network {
    mode.build(&Params::new(mtu, offload))
        .unwrap_or_else(|error| panic!("{} mtu {mtu} {offload}: {error}", mode.name()))
}

fn counters(network: &Network, host: &str, device: &str) -> Counters {
    network.host(host).unwrap().netlink().link(device).unwrap().counters
}

/// Builds `name` under every profile and MTU and drives it. In the user-space
/// datapath each frame must be longer on the wire by `added` bytes, and in the
/// kernel's, which counts a frame without its tag, by `kernel_added`.
fn carries(name: &str, added: u64, kernel_added: u64, tenant_mtu: impl Fn(u32) -> u32) {
    let mode = require!(buildable(name));
    for mtu in [1500, 9000] {
        for offload in Offload::ALL {
            let network = built(mode, mtu, offload);
            assert_eq!(network.tenant_mtu, tenant_mtu(mtu));
            let real = network.client().netlink().link("eth0").unwrap().mtu;
            assert_eq!(real, network.tenant_mtu);
            let [note] = &network.notes[..] else { panic!("{:?}", network.notes) };
            echo(&network, &[200; EXCHANGES as usize]);
            let user_space = note.contains("user-space datapath");
            assert!(user_space || note.contains("kernel datapath"), "{note}");
            // A veth device may count a packet after the other end has answered.
            testbed::poll("counters that agree", LIMIT, || {
                let devices = [("a", "veth0"), ("a", NIC), ("b", NIC), ("b", "veth0")];
                let read = devices.map(|(host, device)| counters(&network, host, device));
                let [from, out, into, to] = &read;
                let encapsulated = |wire: (u64, u64), tenant: (u64, u64)| {
                    let own = wire.0.wrapping_sub(tenant.0);
                    let added = if user_space { added } else { kernel_added };
                    (own == 0 || !user_space)
                        && wire.1 == tenant.1 + added * tenant.0 + ARP.wrapping_mul(own)
                };
                let agree = from.rx_packets > EXCHANGES
                    && encapsulated(
                        (out.tx_packets, out.tx_bytes),
                        (from.rx_packets, from.rx_bytes),
                    )
                    && encapsulated((into.rx_packets, into.rx_bytes), (to.tx_packets, to.tx_bytes));
                Ok(if agree { Ok(()) } else { Err(format!("{name} {mtu} {offload}: {read:?}")) })
            })
            .unwrap();
            // Sizes up to the MTU and, in fragments, above it.
            echo(&network, &[1400, 1422, 1423, 1472, 1473, 8922, 8972, 8973, 20_000]);
            stream_both_ways(&network);
            segmented_datagrams_arrive(&network);
        }
    }
}

#[test]
fn ovs_vlan_carries_tagged_frames() {
    carries("ovs-vlan", 4, 0, |mtu| mtu);
}

#[test]
fn ovs_vxlan_carries_tunnelled_frames() {
    carries("ovs-vxlan", 50, 50, |mtu| mtu - 50);
}

#[test]
fn gso_packets_cross_ovs_vlan_uncut_under_full_and_are_cut_under_none() {
    let mode = require!(buildable("ovs-vlan"));
    for (offload, cut) in [(Offload::Full, false), (Offload::None, true)] {
        let network = built(mode, 1500, offload);
        let before = counters(&network, "b", NIC);
        stream_both_ways(&network);
        let wire = counters(&network, "b", NIC).since(&before);
        let mean = wire.rx_bytes / wire.rx_packets;
        assert_eq!(mean <= 1518, cut, "{offload}: {mean} bytes a packet on the wire");
    }
}

#[test]
fn a_killed_daemon_is_named() {
    for name in ["ovs-vlan", "ovs-vxlan"] {
        let mode = require!(buildable(name));
        for program in ["ovsdb-server", "ovs-vswitchd"] {
            let mut network = built(mode, 1500, Offload::Full);
            network.check().unwrap();
            let pids: Vec<_> = network.programs().map(testbed::Process::pid).collect();
            assert_eq!(pids.len(), 4, "two daemons in each of two hosts");
            let pid = pids
                .into_iter()
                .find(|pid| {
                    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == program
                })
                .unwrap();
            kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
            let error = testbed::poll("the end of a killed daemon", LIMIT, || {
                Ok(network.check().err().ok_or_else(String::new))
            })
            .unwrap()
            .to_string();
            assert!(error.contains(program) && error.contains("signal: 9"), "{error}");
            assert!(error.contains("/run/openvswitch-a"), "the path names the host: {error}");
        }
    }
}

#[test]
fn a_dropped_network_leaves_no_process() {
    for name in ["ovs-vlan", "ovs-vxlan"] {
        let mode = require!(buildable(name));
        let network = built(mode, 1500, Offload::Full);
        let namespaces: BTreeSet<_> =
            network.hosts().iter().map(|host| host.netns().inode()).collect();
        assert!(!processes_in(&namespaces).is_empty());
        drop(network);
        testbed::poll("the end of the daemons", LIMIT, || {
            let left = processes_in(&namespaces);
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .unwrap();
    }
}
