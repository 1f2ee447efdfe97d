//! `vm-tapbridge-vhost-user`: guests joined by `overlane tapbridge`, which accesses their
//! virtqueues in guest memory. There is no TAP device and no bridge.

use datapath::tapbridge::{Bridge, Engine};
use testbed::Host;

use super::bridge::{TENANT_A, TENANT_B};
use super::tapbridge::{UNPINNED, dropped, start};
use crate::guest::{self, Guest, GuestOptions, Nic, Pair};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Guests joined in user space by vhost-user.
pub struct VmTapBridgeVhostUser;

impl Mode for VmTapBridgeVhostUser {
    fn label(&self) -> Label {
        Label::new("vm-tapbridge-vhost-user", "guest's virtio-net - vhost-user - GSO packets through user space (TCG: compare vm modes only)").in_guests()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        guest::supported(machine)
    }

    fn takes(&self, options: &GuestOptions) -> std::result::Result<(), Unsupported> {
        guest::takes(options, guest::Behind::VhostUser)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let (a, b) = (Host::new("a")?, Host::new("b")?);
        let guest = |name, host, address| Guest {
            name,
            host,
            address,
            prefix: 24,
            mtu: params.mtu,
            nic: Nic::VhostUser,
        };
        let guests = [guest("tenant-a", &a, TENANT_A), guest("tenant-b", &b, TENANT_B)];
        let mut guests = Pair::start(guests, params.guest)?;
        // QEMU continues only when its port is served, so do that before waiting for the guests.
        let [left, right] = guests.take_ports()?;
        let uncut = left.offload();
        let running = start(Bridge::new(left, right, None), Engine::Epoll)?;
        Ok(guests
            .before("tapbridge", dropped(&running))
            .network(vec![a, b], params.mtu, Vec::new(), None)?
            .keeping(Box::new(running))
            .noting(format!(
                "no wire: the offload profile does not apply; offloads offered: {uncut}"
            ))
            .noting(guest::INTERRUPTS)
            .noting(UNPINNED))
    }
}
