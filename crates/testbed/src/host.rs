//! Test hosts and tenants.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use netstate::{MacAddr, Netlink};
use sys::ethtool::{Ethtool, Feature};
use sys::netns::NetNs;

use crate::{Error, Offload, Result, poll};

/// Time limit for an IPv6 address to become usable. The kernel first processes every pending
/// network change, in all namespaces.
const SETTLED: Duration = Duration::from_secs(60);

/// A test host: a network namespace, with the sockets to configure and observe it.
#[derive(Debug)]
pub struct Host {
    name: String,
    netns: Arc<NetNs>,
    netlink: Netlink,
    ethtool: Ethtool,
}

/// A tenant behind a host's virtual network. To the kernel it is a host, too.
pub type Tenant = Host;

impl Host {
    /// Creates a host with loopback up and IPv6 off: router solicitations and duplicate address
    /// detection would disturb the measurement.
    ///
    /// # Errors
    /// `EPERM` without the privilege to create namespaces.
    pub fn new(name: &str) -> Result<Host> {
        let host = Host::with_ipv6(name)?;
        for which in ["default", "all"] {
            host.sysctl_if_present(&format!("net/ipv6/conf/{which}/disable_ipv6"), "1")?;
        }
        Ok(host)
    }

    /// Creates a host with loopback up and IPv6 as the kernel configures it, but without
    /// duplicate address detection: no other host is on these wires. During the seconds that
    /// detection takes, a router resolves no neighbour, since its solicitations need a link-local
    /// address.
    pub fn with_ipv6(name: &str) -> Result<Host> {
        let host = Host::found(name, NetNs::new()?)?;
        host.netlink.set_up("lo")?;
        // Set these explicitly: a new namespace may inherit the machine's values
        // (net.core.devconf_inherit_init_net).
        for which in ["default", "all"] {
            host.sysctl(&format!("net/ipv4/conf/{which}/rp_filter"), "0")?;
            host.sysctl_if_present(&format!("net/ipv6/conf/{which}/accept_dad"), "0")?;
        }
        // Netfilter must not see bridged frames unless a mode asks for it.
        for table in ["iptables", "ip6tables", "arptables"] {
            host.sysctl_if_present(&format!("net/bridge/bridge-nf-call-{table}"), "0")?;
        }
        Ok(host)
    }

    /// Wraps a namespace that a program of the testbed has created (a container, Docker's sandbox
    /// of an overlay network), unchanged.
    ///
    /// # Errors
    /// `EPERM` without the privilege to enter the namespace.
    pub fn found(name: &str, netns: NetNs) -> Result<Host> {
        let netlink = Netlink::open_in(&netns)?;
        let ethtool = netns.run(Ethtool::open)??;
        Ok(Host { name: name.to_owned(), netns: Arc::new(netns), netlink, ethtool })
    }

    /// Name within the testbed (`a`, `tenant-b`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The host's network namespace.
    pub fn netns(&self) -> &Arc<NetNs> {
        &self.netns
    }

    /// Netlink socket for links, addresses, routes and neighbours of the host.
    pub fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// Reads a device's features.
    ///
    /// # Errors
    /// `ENODEV` if the host has no such device.
    pub fn features(&self, device: &str) -> Result<BTreeMap<String, Feature>> {
        Ok(self.ethtool.features(device)?)
    }

    /// Switches features of a device (`ethtool -K`).
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL` for a feature that the kernel does not know.
    pub fn set_features(&self, device: &str, wanted: &[(&str, bool)]) -> Result<()> {
        Ok(self.ethtool.set_features(device, wanted)?)
    }

    /// Applies an offload profile to a device and verifies it.
    ///
    /// # Errors
    /// [`Error::Offload`] naming the feature that the kernel did not change.
    pub fn set_offload(&self, device: &str, profile: Offload) -> Result<()> {
        let known = self.features(device)?;
        let mut wanted = profile.features();
        // Skip unknown features: kernels differ, and refuse unknown names. veth has no UDP
        // segmentation before Linux 5.12, and nothing else can switch it on.
        wanted.retain(|(feature, on)| {
            known.get(*feature).is_some_and(|it| {
                it.changeable || it.active == *on || *feature != "tx-udp-segmentation"
            })
        });
        self.set_features(device, &wanted)?;
        let now = self.features(device)?;
        for (feature, on) in wanted {
            // The kernel may accept the request without changing the feature
            // (`netdev_fix_features`).
            if now[feature].active != on {
                let word = |on| if on { "on" } else { "off" };
                return Err(Error::Offload {
                    device: format!("{} {device}", self.name),
                    feature: feature.to_owned(),
                    wanted: word(on),
                    profile: profile.name(),
                    got: word(!on),
                });
            }
        }
        Ok(())
    }

    /// Enables receive packet steering on a device: each flow is processed on one of these CPUs, as
    /// with the queues of a real NIC. Without it, veth processes a packet on the CPU that sent it,
    /// and a flow sent from two CPUs arrives out of order. An empty list disables steering.
    /// # Errors
    /// `ENOENT` if there is no such device, `EPERM` if sysfs is masked.
    pub fn steer(&self, device: &str, cpus: &[usize]) -> Result<()> {
        // A hexadecimal bit mask in words of 32 bits, the highest first.
        let words = cpus.iter().max().map_or(1, |most| most / 32 + 1);
        let mut mask = vec![0u32; words];
        for cpu in cpus {
            mask[cpu / 32] |= 1 << (cpu % 32);
        }
        let mask: Vec<String> = mask.iter().rev().map(|word| format!("{word:08x}")).collect();
        let path = format!("class/net/{device}/queues/rx-0/rps_cpus");
        Ok(sys::sysfs::Sysfs::of(&self.netns)?.write(&path, &mask.join(","))?)
    }

    /// Writes a sysctl by its path below `/proc/sys` (`net/ipv4/ip_forward`).
    ///
    /// # Errors
    /// [`Error::Sysctl`].
    pub fn sysctl(&self, path: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{path}");
        // /proc/sys/net shows the namespace of the thread that opens it.
        self.netns.run(|| std::fs::write(&path, value))?.map_err(|error| Error::Sysctl {
            path: path.clone(),
            value: value.to_owned(),
            error,
        })
    }

    /// Like [`Host::sysctl`], but succeeds if the kernel has no such setting.
    ///
    /// # Errors
    /// [`Error::Sysctl`].
    pub fn sysctl_if_present(&self, path: &str, value: &str) -> Result<()> {
        match self.sysctl(path, value) {
            Err(Error::Sysctl { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(())
            }
            result => result,
        }
    }

    /// Enables IPv4 forwarding.
    ///
    /// # Errors
    /// [`Error::Sysctl`].
    pub fn forward(&self) -> Result<()> {
        self.sysctl("net/ipv4/ip_forward", "1")
    }

    /// Adds an address to a link, switches the link up and waits until the address is usable.
    ///
    /// # Errors
    /// `ENODEV`, `EEXIST`, or an error of [`Host::settle`].
    pub fn address(&self, link: &str, address: impl Into<IpAddr>, prefix: u8) -> Result<()> {
        let address = address.into();
        self.netlink.add_address(link, address, prefix)?;
        self.netlink.set_up(link)?;
        // IPv4 addresses are usable as soon as the kernel has answered the request.
        if address.is_ipv6() { self.settle() } else { Ok(()) }
    }

    /// Waits until all IPv6 addresses of links that are up are usable. The kernel answers the
    /// request for an address before it installs the local route ([`Netlink::is_own`]).
    ///
    /// # Errors
    /// [`Error::NotReady`] naming an address that is not usable after a minute.
    pub fn settle(&self) -> Result<()> {
        poll(&format!("{}'s IPv6 addresses", self.name), SETTLED, || {
            let links = self.netlink.links()?;
            for own in self.netlink.addresses()? {
                // Skip links that are down: their addresses get a local route only when the
                // link comes up.
                let Some(link) = links.iter().find(|link| link.index == own.link && link.up) else {
                    continue;
                };
                if own.address.is_ipv6() && !self.netlink.is_own(own.link, own.address)? {
                    return Ok(Err(format!("{} of {} has no local route", own.address, link.name)));
                }
            }
            Ok(Ok(()))
        })
    }

    /// Creates a veth pair between this host and `tenant`, both ends up.
    ///
    /// # Errors
    /// `EEXIST`.
    pub fn connect(
        &self,
        device: &str,
        tenant: &Host,
        tenant_device: &str,
        mtu: u32,
    ) -> Result<()> {
        self.netlink.add_veth(
            device,
            mac(&self.name, device),
            tenant_device,
            mac(&tenant.name, tenant_device),
            &tenant.netns,
            mtu,
        )?;
        self.netlink.set_up(device)?;
        Ok(tenant.netlink.set_up(tenant_device)?)
    }

    /// Creates a bridge with `ports`, up.
    ///
    /// # Errors
    /// `EOPNOTSUPP` without bridge support.
    pub fn bridge(&self, name: &str, mtu: u32, ports: &[&str]) -> Result<()> {
        self.netlink.add_bridge(name, mac(&self.name, name), mtu)?;
        for port in ports {
            self.netlink.set_master(port, name)?;
        }
        Ok(self.netlink.set_up(name)?)
    }

    /// Loads nftables rules (`nft -f`).
    ///
    /// # Errors
    /// [`Error::Program`] with nft's output, or if nft is not installed.
    pub fn nft(&self, rules: &str) -> Result<()> {
        self.run(Command::new("nft").arg(rules)).map(drop)
    }

    /// Runs a short program in the host to completion and returns its output.
    ///
    /// # Errors
    /// [`Error::Program`] if it fails or cannot be started; [`Error::Killed`].
    pub fn run(&self, command: &mut Command) -> Result<String> {
        command.stdin(Stdio::null());
        self.run_by(command, Command::output)
    }

    /// Like [`Host::run`], with `input` as the program's standard input.
    pub fn run_with_input(&self, command: &mut Command, input: &str) -> Result<String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.run_by(command, |command| {
            let mut child = command.spawn()?;
            // Write everything before reading: such programs print little, so their output pipe
            // does not fill up. If a program ends early, its exit status gives the reason.
            let written = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
            let output = child.wait_with_output()?;
            match written {
                Some(Err(error)) if output.status.success() => Err(error),
                _ => Ok(output),
            }
        })
    }

    fn run_by(
        &self,
        command: &mut Command,
        run: impl FnOnce(&mut Command) -> std::io::Result<Output> + Send,
    ) -> Result<String> {
        let described = sys::program::describe(command);
        // Callers parse the output.
        command.env("LC_ALL", "C");
        let result = self.netns.run(|| run(command))?;
        match result {
            Err(error) => Err(Error::Program {
                program: described,
                status: error.to_string(),
                output: String::new(),
            }),
            Ok(output) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            }
            Ok(output) => Err(match output.status.signal() {
                Some(signal) => Error::Killed { program: described, signal },
                None => Error::Program {
                    program: described,
                    status: output.status.to_string(),
                    output: String::from_utf8_lossy(&output.stderr).into_owned()
                        + &String::from_utf8_lossy(&output.stdout),
                },
            }),
        }
    }
}

/// Returns a locally administered unicast address. It depends only on host and device, so flow
/// hashes are the same in every run.
pub fn mac(host: &str, device: &str) -> MacAddr {
    // FNV-1a: addresses only need to be unique within a testbed.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in host.bytes().chain([b'/']).chain(device.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let bytes = hash.to_be_bytes();
    MacAddr([0x02, 0x6f, bytes[4], bytes[5], bytes[6], bytes[7]])
}
