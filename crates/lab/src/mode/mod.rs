//! One file per mode, and this list of them.

use crate::{Capabilities, Network, Params, Result, Unsupported};

mod bgp;
mod bridge;
mod bridge_macnat;
mod flannel;
mod flannel_accel;
mod host;
mod ipvlan;
mod k8s;
mod loopback;
mod macvlan;
mod nat;
mod nat_proxy;
mod ovs_vlan;
mod ovs_vxlan;
mod routed;
mod same_host;
mod swarm;
mod swarm_accel;
mod tap;
mod tap_netmap;
mod tapbridge;
mod tapbridge_bpf;
mod vlan;
mod vtep;
mod vxlan;
mod vxlan_accel;
mod vxlan_routed;
mod vxlan_routed_accel;

/// A way to get a tenant's packets to another tenant.
pub trait Mode: Send + Sync {
    /// Name, as the command line has it.
    fn name(&self) -> &'static str;

    /// The path in words, hop by hop.
    fn path(&self) -> &'static str;

    /// Whether `--modes all` measures it. Modes in which a host talks to itself and
    /// variants of another mode are measured when they are named.
    fn in_all(&self) -> bool {
        true
    }

    /// About how long building it takes, seconds, where somebody who waits would wonder.
    fn build_seconds(&self) -> Option<u32> {
        None
    }

    /// Whether this machine can build it now.
    ///
    /// # Errors
    /// The reason and the remedy.
    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported>;

    /// Builds hosts, devices and programs, and declares the hops that prove the path.
    ///
    /// # Errors
    /// The first step that failed; nothing stays behind.
    fn build(&self, params: &Params) -> Result<Network>;

    /// Other modes that serve the same purpose as this one, as it was built. The results keep
    /// them; a report advises one that is proven faster.
    fn alternatives(&self, _built: &Network) -> &'static [Alternative] {
        &[]
    }
}

/// Another mode that serves the same purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alternative {
    /// Name of the other mode, as the table of modes has it.
    pub mode: &'static str,
    /// What to change to get there, as a clause.
    pub advice: &'static str,
}

/// Every mode, in the order of the table.
pub fn modes() -> &'static [&'static dyn Mode] {
    &[
        &host::Host,
        &same_host::SameHost,
        &bridge::Bridge,
        &bridge_macnat::BridgeMacnat,
        &macvlan::Macvlan,
        &ipvlan::Ipvlan,
        &vlan::Vlan,
        &routed::Routed,
        &bgp::ALL[0],
        &bgp::ALL[1],
        &bgp::ALL[2],
        &bgp::ALL[3],
        &bgp::ALL[4],
        &bgp::ALL[5],
        &nat::Nat,
        &nat_proxy::NatProxy,
        &vxlan::V4,
        &vxlan_accel::V4,
        &vxlan::V6,
        &vxlan_accel::V6,
        &vxlan_routed::VxlanRouted,
        &vxlan_routed_accel::VxlanRoutedAccel,
        &flannel::Flannel,
        &flannel_accel::FlannelAccel,
        &k8s::ALL[0],
        &k8s::ALL[1],
        &k8s::ALL[2],
        &k8s::ALL[3],
        &k8s::ALL[4],
        &k8s::ALL[5],
        &k8s::ALL[6],
        &k8s::ALL[7],
        &k8s::ALL[8],
        &k8s::ALL[9],
        &k8s::ALL[10],
        &k8s::ALL[11],
        &k8s::ALL[12],
        &k8s::ALL[13],
        &k8s::ALL[14],
        &k8s::ALL[15],
        &swarm::Swarm,
        &swarm_accel::SwarmAccel,
        &ovs_vlan::OvsVlan,
        &ovs_vxlan::OvsVxlan,
        &tap::Tap,
        &tapbridge::EPOLL,
        &tapbridge::URING,
        &tapbridge::POLL,
        &tapbridge_bpf::TapBridgeBpf,
        &vtep::AUTO,
        &vtep::V6,
        &vtep::CUT,
        &vtep::URING,
        &vtep::POLL,
        &vtep::TWO_QUEUES,
        &loopback::Loopback,
        &tap_netmap::UNCUT,
        &tap_netmap::URING,
        &tap_netmap::BPF,
        &tap_netmap::NAIVE,
    ]
}

/// A mode by name.
pub fn find(name: &str) -> Option<&'static dyn Mode> {
    modes().iter().copied().find(|mode| mode.name() == name)
}
