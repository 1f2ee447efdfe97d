//! One file per mode, and this list of them.

use crate::{Capabilities, Network, Params, Result, Unsupported};

mod bridge;
mod bridge_macnat;
mod host;
mod ipvlan;
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

    /// Whether this machine can build it now.
    ///
    /// # Errors
    /// The reason and the remedy.
    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported>;

    /// Builds it.
    ///
    /// # Errors
    /// The first step that failed; nothing stays behind.
    fn build(&self, params: &Params) -> Result<Network>;
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
        &nat::Nat,
        &nat_proxy::NatProxy,
        &vxlan::V4,
        &vxlan_accel::V4,
        &vxlan::V6,
        &vxlan_accel::V6,
        &vxlan_routed::VxlanRouted,
        &vxlan_routed_accel::VxlanRoutedAccel,
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
