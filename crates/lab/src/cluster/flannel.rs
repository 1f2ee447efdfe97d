//! The real flannel daemon in a host.

use std::net::Ipv4Addr;

use testbed::{Host, NIC, Process, Processes};

use super::{LIMIT, NETWORK, program, write};
use crate::Result;

/// File in which flannel reports its host's subnet, by default.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";
/// Path of flannel's network configuration on a Kubernetes node.
const NETWORK_FILE: &str = "/tmp/net-conf.json";
/// Key of the network configuration in etcd.
const KEY: &str = "/coreos.com/network/config";

/// Backend from which flannel gets its subnet.
pub(crate) enum Source<'a> {
    /// etcd at this URL, with flannel's default flags.
    Etcd(&'a str),
    /// The Kubernetes API, with the flags of flannel's manifest.
    Kubernetes {
        /// Path of the kubeconfig.
        config: &'a str,
    },
}

impl Source<'_> {
    /// Writes the network configuration to etcd.
    pub(crate) fn configure(etcd: &mut super::Etcd, tree: &Processes, host: &Host) -> Result<()> {
        etcd.put(tree, host, KEY, NETWORK)
    }
}

/// Subnet that flannel assigned to a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subnet {
    /// The host's own address, for the pods' bridge.
    pub(crate) gateway: Ipv4Addr,
    /// Prefix length of the subnet, bits.
    pub(crate) prefix: u8,
    /// MTU of the pods' devices, bytes.
    pub(crate) mtu: u32,
}

impl Subnet {
    /// Returns the address of the first pod.
    pub(crate) fn pod(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.gateway.to_bits() + 1)
    }
}

/// Starts flannel in a host and waits for its subnet.
pub(crate) fn start(
    tree: &Processes,
    host: &Host,
    source: &Source<'_>,
) -> Result<(Process, Subnet)> {
    let mut command = program("flannel");
    // Name the device: flannel derives it from the default route, which hosts do not have.
    command.args(["-iface", NIC]);
    match source {
        Source::Etcd(url) => {
            command.args(["-etcd-endpoints", url]);
        }
        Source::Kubernetes { config } => {
            write(tree, host, NETWORK_FILE, NETWORK)?;
            command.env("NODE_NAME", host.name()).args(["-ip-masq", "-kube-subnet-mgr"]);
            command.args(["-kubeconfig-file", config, "-net-config-path", NETWORK_FILE]);
        }
    }
    let mut flannel = tree.start(host, &mut command)?;
    let mut found = None;
    testbed::poll("flannel's subnet", LIMIT, || {
        flannel.check()?;
        let text = tree.inside(host, || std::fs::read_to_string(SUBNET_FILE))?;
        // flannel creates the file once it has its subnet.
        found = text.ok().as_deref().and_then(subnet);
        Ok(if found.is_some() { Ok(()) } else { Err(flannel.last_lines()) })
    })?;
    // Unreachable: `poll` returns an error without a subnet.
    let missing = || sys::Error::new("read", SUBNET_FILE, sys::errno::Errno::ENOENT);
    Ok((flannel, found.ok_or_else(missing)?))
}

/// Parses `FLANNEL_SUBNET` and `FLANNEL_MTU` of `subnet.env`; `None` if one is missing.
fn subnet(text: &str) -> Option<Subnet> {
    let value =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let (gateway, prefix) = value("FLANNEL_SUBNET")?.split_once('/')?;
    Some(Subnet {
        gateway: gateway.parse().ok()?,
        prefix: prefix.parse().ok()?,
        mtu: value("FLANNEL_MTU")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subnet_file_is_read() {
        // Written by flannel 0.26.7.
        let text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.77.1/24\n\
                    FLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";
        let subnet = subnet(text).unwrap();
        assert_eq!(
            (subnet.gateway, subnet.prefix, subnet.mtu),
            (Ipv4Addr::new(10, 244, 77, 1), 24, 1450)
        );
        assert_eq!(subnet.pod(), Ipv4Addr::new(10, 244, 77, 2));
        assert!(super::subnet("FLANNEL_SUBNET=10.244.77.1\n").is_none());
    }
}
