//! One file per mode, the list of all modes, and the `Mode` trait.

use std::sync::LazyLock;

use crate::guest::GuestOptions;
use crate::{Capabilities, Fault, Network, Params, Result, Unsupported};

mod bgp;
mod bridge;
mod bridge_macnat;
mod evpn;
mod evpn_l3;
mod flannel;
mod flannel_accel;
mod geneve;
mod host;
mod ipvlan;
mod k8s;
mod k8s_external;
mod k8s_hairpin;
mod k8s_node;
mod loopback;
mod macvlan;
mod nat;
mod nat_proxy;
mod netem;
mod network_node;
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
mod vm_bridge;
mod vm_host;
mod vm_ovs_vxlan;
mod vm_tapbridge;
mod vm_tapbridge_vhost_user;
mod vm_user;
mod vm_vlan;
mod vm_vtep;
mod vm_vtep_vhost_user;
mod vm_vxlan;
mod vrouter_ha;
mod vtep;
mod vxlan;
mod vxlan_accel;
mod vxlan_routed;
mod vxlan_routed_accel;

/// Name and path of a mode, and the runs that include it.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    name: &'static str,
    path: &'static str,
    in_all: bool,
    in_guests: bool,
}

impl Label {
    /// `path` is the path, hop by hop, for people.
    pub fn new(name: &'static str, path: &'static str) -> Label {
        Label { name, path, in_all: true, in_guests: false }
    }

    /// Left out of `--modes all`: modes in which a host talks to itself, and variants of other
    /// modes.
    pub fn not_in_all(self) -> Label {
        self.in_all_if(false)
    }

    pub fn in_all_if(self, in_all: bool) -> Label {
        Label { in_all, ..self }
    }

    /// Client and server run in virtual machines, which run nothing else. `--modes all` leaves
    /// the mode out.
    pub fn in_guests(self) -> Label {
        Label { in_guests: true, in_all: false, ..self }
    }
}

/// One way to carry packets from tenant to tenant.
pub trait Mode: Send + Sync {
    fn label(&self) -> Label;

    /// Name on the command line.
    fn name(&self) -> &'static str {
        self.label().name
    }

    /// The path, hop by hop, for people.
    fn path(&self) -> &'static str {
        self.label().path
    }

    /// Whether `--modes all` includes it.
    fn in_all(&self) -> bool {
        self.label().in_all
    }

    /// Whether client and server run in virtual machines.
    fn in_guests(&self) -> bool {
        self.label().in_guests
    }

    /// Checks whether its guests can start with these options on this machine.
    ///
    /// # Errors
    /// The reason and the remedy, also if the mode has no guests.
    fn takes(&self, options: &GuestOptions) -> std::result::Result<(), Unsupported> {
        match *options == GuestOptions::AS_FOUND || self.in_guests() {
            // With default options there is nothing to refuse.
            true => crate::guest::takes(options, crate::guest::Behind::Tap),
            false => Err(Unsupported::new(
                "its ends are not virtual machines",
                "use a vm-… mode (overlane lab list)",
            )),
        }
    }

    /// Approximate time to build it, seconds; `None` if too short to announce.
    fn build_seconds(&self) -> Option<u32> {
        self.in_guests().then_some(crate::guest::BUILD_SECONDS)
    }

    /// Checks whether this machine can build it now.
    ///
    /// # Errors
    /// The reason and the remedy.
    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported>;

    /// Builds hosts, devices and programs, and declares the hops that prove the path.
    ///
    /// # Errors
    /// The first step that failed. Nothing is left behind.
    fn build(&self, params: &Params) -> Result<Network>;

    /// Modes that serve the same purpose as this one, as built. The results record them, and a
    /// report recommends one that is proven faster.
    fn alternatives(&self, _built: &Network) -> &'static [Alternative] {
        &[]
    }

    /// Faults that can be injected while traffic flows (`lab run --faults`).
    fn faults(&self) -> &'static [Fault] {
        &[]
    }
}

/// Another mode that serves the same purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alternative {
    /// Name of the other mode.
    pub mode: &'static str,
    /// The change that leads there, as an imperative clause.
    pub advice: &'static str,
}

pub struct Group {
    /// Name. `--modes` accepts it for all modes of the group. No mode has the same name.
    pub name: &'static str,
    pub title: &'static str,
    /// Modes in table order.
    pub modes: &'static [&'static dyn Mode],
}

pub fn groups() -> &'static [Group] {
    &[
        Group {
            name: "underlay",
            title: "bare hosts, and tenants on the underlay's layer 2 and routes",
            modes: &[
                &host::Host,
                &same_host::SameHost,
                &bridge::Bridge,
                &bridge_macnat::BridgeMacnat,
                &macvlan::Macvlan,
                &ipvlan::Ipvlan,
                &vlan::Vlan,
                &routed::Routed,
                &netem::Netem,
            ],
        },
        Group {
            name: "routes",
            title: "routes by BGP, as in calico",
            modes: &[
                &bgp::ALL[0],
                &bgp::ALL[1],
                &bgp::ALL[2],
                &bgp::ALL[3],
                &bgp::ALL[4],
                &bgp::ALL[5],
                &bgp::ALL[6],
                &bgp::ALL[7],
                &bgp::ALL[8],
            ],
        },
        Group {
            name: "docker",
            title: "Docker: published ports, Swarm",
            modes: &[&nat::Nat, &nat_proxy::NatProxy, &swarm::Swarm, &swarm_accel::SwarmAccel],
        },
        Group {
            name: "tunnels",
            title: "kernel VXLAN and Geneve devices",
            modes: &[
                &vxlan::V4,
                &vxlan_accel::V4,
                &vxlan::V6,
                &vxlan_accel::V6,
                &vxlan_routed::VxlanRouted,
                &vxlan_routed_accel::VxlanRoutedAccel,
                &geneve::Geneve,
            ],
        },
        Group {
            name: "bgp-evpn",
            title: "VXLAN devices filled by BGP EVPN",
            modes: &[
                &evpn::ALL[0],
                &evpn::ALL[1],
                &evpn::ALL[2],
                &evpn::ALL[3],
                &evpn::ALL[4],
                &evpn_l3::EvpnL3,
            ],
        },
        Group {
            name: "kubernetes",
            title: "flannel, and Kubernetes nodes",
            modes: &[
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
                &k8s_node::NODE_TO_POD,
                &k8s_hairpin::HAIRPIN,
                &k8s_external::EXTERNAL,
            ],
        },
        Group {
            name: "open-vswitch",
            title: "Open vSwitch",
            modes: &[&ovs_vlan::OvsVlan, &ovs_vxlan::OvsVxlan],
        },
        Group {
            name: "network-node",
            title: "OpenStack's network node",
            modes: &[
                &network_node::ALL[0],
                &network_node::ALL[1],
                &network_node::ALL[2],
                &network_node::ALL[3],
                &network_node::ALL[4],
                &vrouter_ha::VrouterHa,
                &network_node::ALL[5],
                &network_node::ALL[6],
                &network_node::ALL[7],
                &network_node::ALL[8],
                &network_node::ALL[9],
                &network_node::ALL[10],
                &network_node::ALL[11],
                &network_node::ALL[12],
                &network_node::ALL[13],
                &network_node::ALL[14],
            ],
        },
        Group {
            name: "user-space",
            title: "packets forwarded by a program: tapbridge, vtep",
            modes: &[
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
            ],
        },
        Group {
            name: "vm",
            title: "virtual machines",
            modes: &[
                &vm_host::VmHost,
                &vm_bridge::VmBridge,
                &vm_vlan::VmVlan,
                &vm_vxlan::PLAIN,
                &vm_vxlan::ACCEL,
                &vm_ovs_vxlan::VmOvsVxlan,
                &vm_tapbridge::VmTapBridge,
                &vm_tapbridge_vhost_user::VmTapBridgeVhostUser,
                &vm_vtep::VmVtep,
                &vm_vtep_vhost_user::VmVtepVhostUser,
                &vm_user::VmUser,
            ],
        },
        Group {
            name: "one-host",
            title: "a host that talks to itself",
            modes: &[
                &loopback::Loopback,
                &tap_netmap::UNCUT,
                &tap_netmap::URING,
                &tap_netmap::BPF,
                &tap_netmap::NAIVE,
            ],
        },
    ]
}

/// Returns every mode, in table order.
pub fn modes() -> &'static [&'static dyn Mode] {
    static ALL: LazyLock<Vec<&'static dyn Mode>> =
        LazyLock::new(|| groups().iter().flat_map(|group| group.modes).copied().collect());
    &ALL
}

pub fn find(name: &str) -> Option<&'static dyn Mode> {
    modes().iter().copied().find(|mode| mode.name() == name)
}
