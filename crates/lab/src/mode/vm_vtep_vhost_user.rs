//! `vm-vtep-vhost-user`: guests whose virtqueues `overlane vtep` accesses in guest memory:
//! VXLAN in user space in each host, without TAP device and bridge.

use std::net::IpAddr;
use std::sync::Arc;

use datapath::vhost_user::{GuestPort, PREFIX};
use datapath::vtep::{Config, Endpoint, NetworkConfig, Running};
use netstate::Hop;
use testbed::{Host, NIC, Wire};

use super::bridge::{TENANT_A, TENANT_B};
use super::tapbridge::{UNPINNED, failed};
use super::vm_bridge::hosts;
use super::vtep::{AUTO, dropped};
use super::vxlan::{UDP_PORT, VNI};
use crate::guest::{self, Guest, GuestOptions, Nic, Pair};
use crate::network::VXLAN_OVERHEAD;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Guests behind user-space tunnel endpoints, by vhost-user.
pub struct VmVtepVhostUser;

impl Mode for VmVtepVhostUser {
    fn label(&self) -> Label {
        Label::new("vm-vtep-vhost-user", "guest's virtio-net - vhost-user - VXLAN in user space, GSO packets - wire (TCG: compare vm modes only)").in_guests()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        AUTO.probe(machine)?;
        guest::supported(machine)
    }

    fn takes(&self, options: &GuestOptions) -> std::result::Result<(), Unsupported> {
        guest::takes(options, guest::Behind::VhostUser)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let [a, b] = hosts(params)?;
        params.wire().address(&a, &b)?;
        let mtu = params.mtu - VXLAN_OVERHEAD;
        let guest = |name, host, address| Guest {
            name,
            host,
            address,
            prefix: 24,
            mtu,
            nic: Nic::VhostUser,
        };
        let guests = [guest("tenant-a", &a, TENANT_A), guest("tenant-b", &b, TENANT_B)];
        let mut guests = Pair::start(guests, params.guest)?;
        // QEMU continues only when its port is served, so do that before waiting for the guests.
        let [left, right] = guests.take_ports()?;
        let from_a = Arc::new(endpoint(&a, [Wire::A.into(), Wire::B.into()], left)?);
        let from_b = Arc::new(endpoint(&b, [Wire::B.into(), Wire::A.into()], right)?);
        let note = format!("{UNPINNED}; hand-over {}", from_a.way());
        let middle = vec![Hop::tx("a", NIC), Hop::rx("b", NIC).before("vtep", dropped(&from_b))];
        Ok(guests
            .before("vtep", dropped(&from_a))
            .network(vec![a, b], mtu, middle, None)?
            .keeping(Box::new(from_a))
            .keeping(Box::new(from_b))
            .noting(guest::INTERRUPTS)
            .noting(note))
    }
}

/// Starts an endpoint in `host` for the guest behind `port`.
fn endpoint(host: &Host, [local, remote]: [IpAddr; 2], port: GuestPort) -> Result<Running> {
    let tap = format!("{PREFIX}{}", port.name());
    let network = NetworkConfig { remotes: vec![remote], ..NetworkConfig::new(VNI, tap) };
    let queues = port.queue_count();
    let config = Config { port: UDP_PORT, queues, networks: vec![network], ..Config::new(local) };
    let endpoint = Endpoint::open(&config, host.netns()).map_err(failed)?;
    endpoint.attach(vec![port]).and_then(|ready| ready.start()).map_err(failed)
}
