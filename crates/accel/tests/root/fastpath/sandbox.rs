//! Two test hosts with bridge, VXLAN device and tenants' ports in a namespace without the NIC, as Docker has
//! its overlay networks.

use std::ops::Deref;
use std::process::{Child, Command, Stdio};

use testbed::{Host, Offload, mac};

use super::pair::{BRIDGE, DEVICE, PORT, Pair, TENANT_A, TENANT_B, sh};
use super::underlay::Underlay;

/// A process that keeps a namespace alive. Sandboxes that only this process holds are not searched.
pub struct Keeper(Child);

impl Keeper {
    pub fn of(host: &Host) -> Keeper {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped());
        Keeper(host.netns().run(|| command.spawn()).unwrap().unwrap())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A namespace that a process keeps.
pub struct Sandbox {
    host: Host,
    keeper: Option<Keeper>,
    /// Keeps the tenant's namespace alive.
    pub tenant: Option<Keeper>,
}

impl Deref for Sandbox {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl Sandbox {
    pub fn of(host: Host) -> Sandbox {
        let keeper = Some(Keeper::of(&host));
        Sandbox { host, keeper, tenant: None }
    }

    pub fn keep(&mut self) {
        self.keeper = Some(Keeper::of(&self.host));
    }

    /// Name of the sandbox's device in a status.
    pub fn device(&self) -> String {
        format!("net:[{}]/{DEVICE}", self.host.netns().inode())
    }

    /// Leaves this process as the only one that keeps the namespace.
    pub fn abandon(&mut self) {
        self.keeper = None;
    }

    /// Moves the VXLAN device of `host` here, and builds bridge and port around it.
    pub fn adopt(&self, host: &Host, mtu: u32, port: &str, bridge_netfilter: bool) {
        host.netlink().set_netns(DEVICE, self.netns()).unwrap();
        self.netlink().set_up(DEVICE).unwrap();
        self.bridge(BRIDGE, mtu, &[DEVICE, port]).unwrap();
        for table in ["iptables", "ip6tables", "arptables"] {
            let path = format!("net/bridge/bridge-nf-call-{table}");
            self.sysctl_if_present(&path, if bridge_netfilter { "1" } else { "0" }).unwrap();
        }
    }
}

impl Pair {
    /// Builds sandboxes as dockerd does. The VXLAN device is created in the host without an
    /// underlay device, local address or default remote, with `proxy l2miss l3miss`, and then
    /// moved. Entries for the other tenant are static, and bridge-nf-call is on.
    pub fn sandboxed(offload: Offload, udp_csum: bool) -> Pair {
        Pair::sandboxed_over(Underlay::V4, offload, udp_csum)
    }

    /// The same over a given underlay. Over IPv6 the device has a local address, which selects the
    /// address family.
    pub fn sandboxed_over(underlay: Underlay, offload: Offload, udp_csum: bool) -> Pair {
        let mut pair = Pair {
            a: Host::new("a").unwrap(),
            b: Host::new("b").unwrap(),
            tenant_a: Host::with_ipv6("tenant-a").unwrap(),
            tenant_b: Host::with_ipv6("tenant-b").unwrap(),
            sandboxes: None,
        };
        let mtu = underlay.mtu();
        underlay.join(&pair.a, &pair.b, offload, false);
        let sandbox = |name| Sandbox::of(Host::with_ipv6(name).unwrap());
        let mut sandboxes = ["sandbox-a", "sandbox-b"].map(sandbox);
        sandboxes[0].tenant = Some(Keeper::of(&pair.tenant_a));
        sandboxes[1].tenant = Some(Keeper::of(&pair.tenant_b));
        let checksum = underlay.options(udp_csum);
        let [address_a, address_b] = underlay.addresses();
        let local = |address| match underlay {
            Underlay::V4 => String::new(),
            Underlay::V6 => format!("local {address}"),
        };
        let [sandbox_a, sandbox_b] = &sandboxes;
        for (host, sandbox, tenant, own, other, other_tenant, [address, remote]) in [
            (
                &pair.a,
                sandbox_a,
                &pair.tenant_a,
                TENANT_A,
                TENANT_B,
                "tenant-b",
                [address_a, address_b],
            ),
            (
                &pair.b,
                sandbox_b,
                &pair.tenant_b,
                TENANT_B,
                TENANT_A,
                "tenant-a",
                [address_b, address_a],
            ),
        ] {
            sh(
                host,
                &format!(
                    "ip link add {DEVICE} address {} mtu {mtu} type vxlan id 4097 dstport 4789 \
                     proxy learning l2miss l3miss {checksum} {}",
                    mac(sandbox.name(), DEVICE),
                    local(address)
                ),
            );
            sandbox.connect(PORT, tenant, "eth0", mtu).unwrap();
            sandbox.adopt(host, mtu, PORT, true);
            let there = mac(other_tenant, "eth0");
            sandbox.netlink().add_vxlan_fdb(DEVICE, there, remote).unwrap();
            sandbox.netlink().add_neighbour(DEVICE, other.into(), there).unwrap();
            tenant.address("eth0", own, 24).unwrap();
            // Docker's tenants have IPv4 only, and there is no flooding for other address
            // resolution.
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
