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

/// How long the kernel may take to make an address of use: every change of the network,
/// in whatever namespace, goes before.
const SETTLED: Duration = Duration::from_secs(60);

/// A network namespace with the sockets to configure and watch it: a test host.
#[derive(Debug)]
pub struct Host {
    name: String,
    netns: Arc<NetNs>,
    netlink: Netlink,
    ethtool: Ethtool,
}

/// What runs behind a host's virtual network: to the kernel, just another host.
pub type Tenant = Host;

impl Host {
    /// Makes a host with loopback up and IPv6 off. Router solicitations and duplicate
    /// address detection would mix with what is measured.
    ///
    /// # Errors
    /// `EPERM` without the right to make namespaces.
    pub fn new(name: &str) -> Result<Host> {
        let host = Host::with_ipv6(name)?;
        for which in ["default", "all"] {
            host.sysctl_if_present(&format!("net/ipv6/conf/{which}/disable_ipv6"), "1")?;
        }
        Ok(host)
    }

    /// Makes a host with loopback up and IPv6 as the kernel has it, but without duplicate
    /// address detection. Nobody else is on these wires. During the seconds that detection
    /// takes, a router resolves no neighbour, as its solicitations want a link-local
    /// address.
    ///
    /// # Errors
    /// As [`Host::new`].
    pub fn with_ipv6(name: &str) -> Result<Host> {
        let host = Host::found(name, NetNs::new()?)?;
        host.netlink.set_up("lo")?;
        // The same on every machine, whatever its own sysctls are: a new
        // namespace inherits some of them (net.core.devconf_inherit_init_net).
        for which in ["default", "all"] {
            host.sysctl(&format!("net/ipv4/conf/{which}/rp_filter"), "0")?;
            host.sysctl_if_present(&format!("net/ipv6/conf/{which}/accept_dad"), "0")?;
        }
        // Frames crossing a bridge are not IP-filtered unless a mode wants it.
        for table in ["iptables", "ip6tables", "arptables"] {
            host.sysctl_if_present(&format!("net/bridge/bridge-nf-call-{table}"), "0")?;
        }
        Ok(host)
    }

    /// A namespace that a program of the testbed has made (a container, Docker's
    /// sandbox of an overlay network), as it is.
    ///
    /// # Errors
    /// `EPERM` without the right to enter the namespace.
    pub fn found(name: &str, netns: NetNs) -> Result<Host> {
        let netlink = Netlink::open_in(&netns)?;
        let ethtool = netns.run(Ethtool::open)??;
        Ok(Host { name: name.to_owned(), netns: Arc::new(netns), netlink, ethtool })
    }

    /// Its name within the testbed (`a`, `tenant-b`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The network namespace that plays this host.
    pub fn netns(&self) -> &Arc<NetNs> {
        &self.netns
    }

    /// Links, addresses, routes, neighbours of the host.
    pub fn netlink(&self) -> &Netlink {
        &self.netlink
    }

    /// A device's features.
    ///
    /// # Errors
    /// `ENODEV` when the host has no such device.
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

    /// Sets an offload profile on a device and reads back that it took.
    ///
    /// # Errors
    /// [`Error::Offload`] naming the feature that did not take.
    pub fn set_offload(&self, device: &str, profile: Offload) -> Result<()> {
        let known = self.features(device)?;
        let mut wanted = profile.features();
        // Kernels differ in the features that they know, and refuse an unknown name. veth has
        // no UDP segmentation before Linux 5.12, and nothing else can switch it on.
        wanted.retain(|(feature, on)| {
            known.get(*feature).is_some_and(|it| {
                it.changeable || it.active == *on || *feature != "tx-udp-segmentation"
            })
        });
        self.set_features(device, &wanted)?;
        let now = self.features(device)?;
        for (feature, on) in wanted {
            // The kernel may accept a request and leave a feature as it was
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

    /// Lets a device hand what it receives to these CPUs, each flow to one of them (receive
    /// packet steering). The queues of a real NIC do the same. veth alone leaves a packet to
    /// the CPU that sent it; a flow sent from two CPUs then arrives out of order. An empty
    /// list switches steering off.
    ///
    /// # Errors
    /// `ENOENT` when there is no such device, `EPERM` where sysfs is masked.
    pub fn steer(&self, device: &str, cpus: &[usize]) -> Result<()> {
        // A bit mask in hexadecimal words of 32 bits, the highest first.
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
        // The tree under /proc/sys/net is that of the thread that opens it.
        self.netns.run(|| std::fs::write(&path, value))?.map_err(|error| Error::Sysctl {
            path: path.clone(),
            value: value.to_owned(),
            error,
        })
    }

    /// As [`Host::sysctl`], and nothing where the kernel has no such setting.
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

    /// Lets the host forward IPv4 packets.
    ///
    /// # Errors
    /// [`Error::Sysctl`].
    pub fn forward(&self) -> Result<()> {
        self.sysctl("net/ipv4/ip_forward", "1")
    }

    /// Gives a link an address, switches it up and waits until the address is the host's.
    ///
    /// # Errors
    /// `ENODEV`, `EEXIST`; as [`Host::settle`].
    pub fn address(&self, link: &str, address: impl Into<IpAddr>, prefix: u8) -> Result<()> {
        let address = address.into();
        self.netlink.add_address(link, address, prefix)?;
        self.netlink.set_up(link)?;
        // IPv4 is received for as soon as the kernel has answered the request.
        if address.is_ipv6() { self.settle() } else { Ok(()) }
    }

    /// Waits until the host receives what is sent to the IPv6 addresses of its links that
    /// are up. The kernel answers the request for an address before it receives for it
    /// ([`Netlink::is_own`]).
    ///
    /// # Errors
    /// [`Error::NotReady`] naming an address that it does not receive for after a minute.
    pub fn settle(&self) -> Result<()> {
        poll(&format!("{}'s IPv6 addresses", self.name), SETTLED, || {
            let links = self.netlink.links()?;
            for own in self.netlink.addresses()? {
                // An address of a link that is down gets its local route when the link comes
                // up.
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

    /// Makes a veth pair between this host and `tenant`, both ends up.
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

    /// Makes a bridge, up, with `ports`.
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
    /// [`Error::Program`] with what nft printed; when it is not installed, its
    /// package is named.
    pub fn nft(&self, rules: &str) -> Result<()> {
        self.run(Command::new("nft").arg(rules)).map(drop)
    }

    /// Runs a short program in the host to its end and returns what it printed.
    ///
    /// # Errors
    /// [`Error::Program`] when it fails or cannot be started; [`Error::Killed`].
    pub fn run(&self, command: &mut Command) -> Result<String> {
        command.stdin(Stdio::null());
        self.run_by(command, Command::output)
    }

    /// As [`Host::run`], with `input` at the program's standard input.
    ///
    /// # Errors
    /// As [`Host::run`].
    pub fn run_with_input(&self, command: &mut Command, input: &str) -> Result<String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.run_by(command, |command| {
            let mut child = command.spawn()?;
            // It prints little, so it reads before its output is full. One that ends before
            // it has read all says why by its status.
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
        // What it prints is read.
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

/// A locally administered unicast address, the same for the same host and
/// device in every run, so that flow hashes do not vary between runs.
pub fn mac(host: &str, device: &str) -> MacAddr {
    // FNV-1a; any spread will do: uniqueness is needed within a testbed only.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in host.bytes().chain([b'/']).chain(device.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let bytes = hash.to_be_bytes();
    MacAddr([0x02, 0x6f, bytes[4], bytes[5], bytes[6], bytes[7]])
}
