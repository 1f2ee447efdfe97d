//! `swarm+accel`: the network of `swarm`, with `overlane accel`'s fast path in both hosts.
//! Packets bypass the bridge and the VXLAN device in Docker's sandbox.

use super::swarm::Swarmed;
use super::vxlan::{DEVICE, TENANT_B};
use super::vxlan_accel::{MIRRORS, SHORTCUTS, hops, run, settle};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// `swarm` with the fast path in both hosts.
pub struct SwarmAccel;

impl Mode for SwarmAccel {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(
            "swarm+accel",
            "container - veth - eBPF bypassing Docker's sandbox - veth pair - wire",
        )
        .not_in_all()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])?;
        machine.docker()?;
        machine.fast_path()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let swarm = Swarmed::new(params)?;
        let both = [run(&swarm.hosts[0])?, run(&swarm.hosts[1])?];
        let network = swarm.network(params, |a, b| {
            settle([&a.tenant, &b.tenant], TENANT_B, TENANT_B, &both)?;
            Ok(hops(DEVICE, &both, [("sandbox-a", &a.port), ("sandbox-b", &b.port)]))
        })?;
        let [from_a, from_b] = both;
        Ok(network
            // The fast path stops when it is dropped.
            .keeping(Box::new(from_a))
            .keeping(Box::new(from_b))
            .noting(SHORTCUTS)
            .noting(MIRRORS))
    }
}
