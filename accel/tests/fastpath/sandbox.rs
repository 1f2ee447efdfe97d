//! Two test hosts with bridge, VXLAN device and tenants' ports in a namespace without the NIC, as Docker has
//! its overlay networks.

use std::ops::Deref;
use std::process::{Child, Command, Stdio};

use testbed::{Host, Offload, Wire, mac};

use crate::pair::{BRIDGE, DEVICE, PORT, Pair, TENANT_A, TENANT_B, sh};

/// A namespace that a process keeps: what only this one holds is not looked for.
pub struct Sandbox {
    host: Host,
    keeper: Option<Child>,
}

impl Deref for Sandbox {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl Sandbox {
    fn new(name: &str) -> Sandbox {
        let mut sandbox = Sandbox { host: Host::with_ipv6(name).unwrap(), keeper: None };
        sandbox.keep();
        sandbox
    }

    pub fn keep(&mut self) {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped());
        self.keeper = Some(self.host.netns().run(|| command.spawn()).unwrap().unwrap());
    }

    /// What a device of the sandbox is called in a status.
    pub fn device(&self) -> String {
        format!("net:[{}]/{DEVICE}", self.host.netns().inode())
    }

    /// Nobody keeps it any more, but for this process.
    pub fn abandon(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Pair {
    /// As dockerd makes it: the VXLAN device made in the host, without a device of the
    /// underlay, an own or a default remote address, with `proxy l2miss l3miss`, then
    /// moved; static entries for the other tenant; bridge-nf-call on.
    pub fn sandboxed(offload: Offload, udp_csum: bool) -> Pair {
        let mut pair = Pair {
            a: Host::new("a").unwrap(),
            b: Host::new("b").unwrap(),
            tenant_a: Host::with_ipv6("tenant-a").unwrap(),
            tenant_b: Host::with_ipv6("tenant-b").unwrap(),
            sandboxes: None,
        };
        let wire = Wire { mtu: 1500, offload };
        wire.join(&pair.a, &pair.b).unwrap();
        wire.address(&pair.a, &pair.b).unwrap();
        let sandboxes = ["sandbox-a", "sandbox-b"].map(Sandbox::new);
        let checksum = if udp_csum { "udpcsum" } else { "noudpcsum" };
        let [sandbox_a, sandbox_b] = &sandboxes;
        for (host, sandbox, tenant, own, other, other_tenant, remote) in [
            (&pair.a, sandbox_a, &pair.tenant_a, TENANT_A, TENANT_B, "tenant-b", Wire::B),
            (&pair.b, sandbox_b, &pair.tenant_b, TENANT_B, TENANT_A, "tenant-a", Wire::A),
        ] {
            sh(
                host,
                &format!(
                    "ip link add {DEVICE} address {} mtu 1450 type vxlan id 4097 dstport 4789 \
                     proxy learning l2miss l3miss {checksum}",
                    mac(sandbox.name(), DEVICE)
                ),
            );
            host.netlink().set_netns(DEVICE, sandbox.netns()).unwrap();
            sandbox.netlink().set_up(DEVICE).unwrap();
            sandbox.connect(PORT, tenant, "eth0", 1450).unwrap();
            sandbox.bridge(BRIDGE, 1450, &[DEVICE, PORT]).unwrap();
            for table in ["iptables", "ip6tables", "arptables"] {
                let path = format!("net/bridge/bridge-nf-call-{table}");
                sandbox.sysctl_if_present(&path, "1").unwrap();
            }
            let there = mac(other_tenant, "eth0");
            sandbox.netlink().add_vxlan_fdb(DEVICE, there, remote.into()).unwrap();
            sandbox.netlink().add_neighbour(DEVICE, other.into(), there).unwrap();
            tenant.address("eth0", own, 24).unwrap();
            // Docker's tenants have IPv4 only; there is no flood to ask for others by.
            let [.., last] = own.octets();
            let [.., other] = other.octets();
            sh(
                tenant,
                &format!(
                    "ip addr add fd00::{last}/64 dev eth0 nodad
                     ip neigh add fd00::{other} lladdr {there} dev eth0"
                ),
            );
        }
        pair.sandboxes = Some(sandboxes);
        pair
    }

    pub fn sandbox_a(&self) -> &Sandbox {
        &self.sandboxes.as_ref().unwrap()[0]
    }

    pub fn sandbox_b(&self) -> &Sandbox {
        &self.sandboxes.as_ref().unwrap()[1]
    }
}
