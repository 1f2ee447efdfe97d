//! Finds out what this machine and its kernel can build, by trying it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use datapath::tapbridge::{Bridge, Engine, EngineChoice, Port, PortOptions};
use netstate::Error as NetlinkError;
use netstate::bridge_vlan::Membership;
use nix::errno::Errno;
use packet::vlan::VlanId;
use testbed::{Host, Privileges, mac};

use crate::unsupported::{Supported, Unsupported, find_program};
use crate::{Result, docker, ovs};

/// MTU of the probe bridge, bytes: Ethernet's.
const LEAST_MTU: u32 = 1500;
const PROBED_VLAN: VlanId = match VlanId::new(10) {
    Ok(vlan) => vlan,
    Err(_) => panic!("evaluated by the compiler"),
};

/// Answers about the kernel and the machine. Each question is asked once.
#[derive(Debug)]
pub struct Capabilities {
    scratch: Host,
    privileges: Privileges,
    kinds: Mutex<BTreeMap<&'static str, Supported>>,
    nftables: Mutex<BTreeMap<&'static str, Supported>>,
    iptables: OnceLock<Supported>,
    open_vswitch: OnceLock<Supported>,
    fast_path: OnceLock<Supported>,
    engines: Mutex<BTreeMap<&'static str, Supported>>,
}

impl Capabilities {
    /// Creates a scratch host for the probes.
    ///
    /// # Errors
    /// If this process may not create network namespaces.
    pub fn new(privileges: Privileges) -> Result<Capabilities> {
        Ok(Capabilities {
            scratch: Host::new("scratch")?,
            privileges,
            kinds: Mutex::default(),
            nftables: Mutex::default(),
            iptables: OnceLock::new(),
            open_vswitch: OnceLock::new(),
            fast_path: OnceLock::new(),
            engines: Mutex::default(),
        })
    }

    pub fn privileges(&self) -> Privileges {
        self.privileges
    }

    /// Checks whether the kernel supports all of these link kinds.
    pub fn links(&self, kinds: &[&'static str]) -> Supported {
        kinds.iter().try_for_each(|kind| self.link(kind))
    }

    fn link(&self, kind: &'static str) -> Supported {
        // A probe that panics stores no answer, so the map is consistent.
        let mut known = self.kinds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.entry(kind).or_insert_with(|| self.try_link(kind)).clone()
    }

    fn try_link(&self, kind: &'static str) -> Supported {
        const NAME: &str = "probe";
        let netlink = self.scratch.netlink();
        let answer = netlink.add_kind(NAME, kind);
        // If the kernel refused to create the device, there is nothing to delete.
        let _ = netlink.delete_link(NAME);
        match answer {
            Err(NetlinkError::Kernel { errno: Errno::EOPNOTSUPP, .. }) => Err(Unsupported::new(
                format!("kernel has no {}", module(kind)),
                format!(
                    "load it (modprobe {}) or use a kernel with {}",
                    module(kind),
                    config(kind)
                ),
            )),
            Err(NetlinkError::Kernel { errno: errno @ (Errno::EPERM | Errno::EACCES), .. }) => {
                Err(Unsupported::without_root(
                    format!("kernel refuses to create a {kind} device: {}", errno.desc()),
                    "run as root",
                ))
            }
            // Any other error (a missing parent link, for example) comes from the driver, so
            // the driver exists.
            _ => Ok(()),
        }
    }

    /// Checks whether the kernel has the queueing discipline netem.
    pub fn netem(&self) -> Supported {
        const LINK: &str = "lo";
        // The qdisc stays: it has no delay and the default limit of `tc`.
        match self.scratch.netlink().delay(LINK, Duration::ZERO, 1000) {
            Ok(()) => Ok(()),
            Err(error) => Err(Unsupported::new(
                match error.errno() {
                    Some(Errno::ENOENT) => "kernel has no netem".to_owned(),
                    _ => error.to_string(),
                },
                "load it (modprobe sch_netem) or use a kernel with CONFIG_NET_SCH_NETEM",
            )),
        }
    }

    /// Checks whether bridges support VLAN filtering. Without support the kernel accepts the
    /// setting, so try to add a VLAN.
    pub fn vlan_filtering(&self) -> Supported {
        const BRIDGE: &str = "probe";
        self.links(&["bridge"])?;
        let netlink = self.scratch.netlink();
        let joined = netlink
            .add_bridge(BRIDGE, mac(self.scratch.name(), BRIDGE), LEAST_MTU)
            .and_then(|()| netlink.join_vlan(BRIDGE, PROBED_VLAN, Membership::Bridge));
        // If the bridge was not created, there is nothing to delete.
        let _ = netlink.delete_link(BRIDGE);
        joined.map_err(|error| {
            Unsupported::new(
                match error.errno() {
                    Some(Errno::EOPNOTSUPP) => "kernel has no VLAN filtering on bridges".to_owned(),
                    _ => error.to_string(),
                },
                "use a kernel with CONFIG_BRIDGE_VLAN_FILTERING",
            )
        })
    }

    /// Checks whether IPv6 is available.
    pub fn ipv6(&self) -> Supported {
        const SETTINGS: &str = "/proc/sys/net/ipv6/conf/all";
        // Absent both if IPv6 is not built in and after ipv6.disable=1.
        Path::new(SETTINGS).exists().then_some(()).ok_or_else(|| {
            Unsupported::new(
                format!("kernel has no IPv6 ({SETTINGS} does not exist)"),
                "load it (modprobe ipv6), start without ipv6.disable=1, or use a kernel with CONFIG_IPV6",
            )
        })
    }

    /// Looks a program up. If it is missing, the remedy names the Debian package.
    pub fn program(
        &self,
        program: &str,
        package: &str,
    ) -> std::result::Result<PathBuf, Unsupported> {
        find_program(program).ok_or_else(|| {
            Unsupported::new(
                format!("{program} is not installed"),
                format!("apt install {package}"),
            )
        })
    }

    /// Checks whether nft is installed and the kernel accepts `rules`.
    pub fn nftables(&self, feature: &'static str, rules: &str) -> Supported {
        self.program("nft", "nftables")?;
        let mut known = self.nftables.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known
            .entry(feature)
            .or_insert_with(|| {
                refused(self.scratch.nft(rules), |error| {
                    Unsupported::new(
                        format!("kernel refuses nftables {feature} rules: {error}"),
                        "use a kernel with CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, CONFIG_NFT_NAT and CONFIG_NFT_MASQ (CONFIG_NF_TABLES_BRIDGE for bridge rules)",
                    )
                })
            })
            .clone()
    }

    /// Checks whether the kernel accepts the iptables rules that `load` installs, those of
    /// OpenStack's L3 agent.
    pub(crate) fn iptables(&self, load: impl FnOnce(&Host) -> Result<()>) -> Supported {
        self.iptables
            .get_or_init(|| {
                refused(load(&self.scratch), |error| {
                    Unsupported::new(
                        format!("kernel refuses the router's iptables rules: {error}"),
                        "use a kernel with CONFIG_NETFILTER_XT_MATCH_CONNMARK, CONFIG_NETFILTER_XT_MATCH_CONNTRACK, CONFIG_NETFILTER_XT_NAT and CONFIG_NETFILTER_XT_TARGET_REDIRECT",
                    )
                })
            })
            .clone()
    }

    /// Checks whether Open vSwitch is installed and can forward packets, by the kernel module or
    /// in user space. In user space it needs a TAP device for each bridge.
    pub fn open_vswitch(&self) -> Supported {
        self.open_vswitch
            .get_or_init(|| {
                ovs::installed()?;
                let datapath = match ovs::Datapath::find(&self.scratch) {
                    Ok(datapath) => datapath,
                    Err(error) => {
                        return refused(Err(error), |error| {
                            let remedy = "apt install --reinstall openvswitch-switch";
                            Unsupported::new(error.to_string(), remedy)
                        });
                    }
                };
                // The kernel datapath needs no TAP devices.
                let ovs::Datapath::UserSpace { reason } = datapath else { return Ok(()) };
                self.tun().map_err(|tun| {
                    let remedy = "or load the openvswitch module (modprobe openvswitch)";
                    Unsupported {
                        reason: format!(
                            "{reason}, and its user-space datapath needs {}",
                            tun.reason
                        ),
                        remedy: format!("{}, {remedy}", tun.remedy),
                        needs_root: tun.needs_root,
                    }
                })
            })
            .clone()
    }

    /// Checks whether Docker Engine is installed and this process may run it.
    pub fn docker(&self) -> Supported {
        if self.privileges != Privileges::Root {
            // It creates control groups and mounts that a user namespace forbids.
            return Err(Unsupported::without_root("Docker Engine needs root", "run as root"));
        }
        docker::installed()
    }

    /// Checks whether the kernel loads the fast path's BPF programs for this process.
    pub fn fast_path(&self) -> Supported {
        self.fast_path
            .get_or_init(|| {
                accel::probe(self.scratch.netns()).map_err(|error| {
                    Unsupported::without_root(
                        error.to_string(),
                        "run as root on Linux 6.6 or later with BTF (/sys/kernel/btf/vmlinux)",
                    )
                })
            })
            .clone()
    }

    /// Checks whether this engine of `overlane tapbridge` can join two TAPs. The engines of
    /// `vtep` read TAPs like `epoll` and `uring`.
    pub fn engine(&self, engine: Engine) -> Supported {
        // Every engine opens TAP devices, so check that first.
        self.tun()?;
        let mut known = self.engines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.entry(engine.name()).or_insert_with(|| self.try_engine(engine)).clone()
    }

    fn try_engine(&self, engine: Engine) -> Supported {
        // Each engine uses TAP names of its own: a program that another thread starts holds copies
        // of all descriptors until its `exec`, so TAPs of an earlier probe may still exist.
        let open = |end: u8| {
            let name = format!("{}{end}", engine.name());
            Port::open(&PortOptions::named(name), self.scratch.netns())
        };
        let joined = open(0).and_then(|left| Ok((left, open(1)?)));
        let joined = joined.map_err(datapath::Error::from).and_then(|(left, right)| {
            Bridge::new(left, right, None)?.engine(EngineChoice::Only(engine)).map(drop)
        });
        joined.map_err(|error| {
            let reason = error.to_string();
            match engine {
                Engine::Epoll => Unsupported::without_root(reason, "run as root"),
                Engine::Uring => Unsupported::new(
                    reason,
                    "use Linux 6.7 or later and allow io_uring (sysctl kernel.io_uring_disabled=0)",
                ),
                Engine::Bpf => Unsupported::without_root(
                    reason,
                    "run as root on a kernel with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS",
                ),
            }
        })
    }

    /// Checks whether this process may open `/dev/net/tun`.
    pub fn tun(&self) -> Supported {
        const DEVICE: &str = "/dev/net/tun";
        match std::fs::OpenOptions::new().read(true).write(true).open(DEVICE) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                Err(Unsupported::without_root(
                    format!("{DEVICE}: {error}"),
                    "run as root, or allow this user to open it",
                ))
            }
            Err(error) => Err(Unsupported::new(
                format!("{DEVICE}: {error}"),
                "load the tun module (modprobe tun) or use a kernel with CONFIG_TUN",
            )),
        }
    }
}

/// Converts the failure of a probe program. A killed program proves nothing about the machine,
/// so the mode counts as supported, and building it reports the actual error.
fn refused(
    answer: Result<()>,
    unsupported: impl FnOnce(testbed::Error) -> Unsupported,
) -> Supported {
    match answer {
        // The kernel created the device; the program was killed while it removed it.
        Ok(()) | Err(testbed::Error::Killed { .. }) => Ok(()),
        Err(error) => Err(unsupported(error)),
    }
}

/// Returns the name of the kernel module for a link kind.
fn module(kind: &str) -> &str {
    match kind {
        "vlan" => "8021q",
        other => other,
    }
}

fn config(kind: &str) -> String {
    match kind {
        "vlan" => "CONFIG_VLAN_8021Q".to_owned(),
        "ipip" | "vrf" => format!("CONFIG_NET_{}", kind.to_uppercase()),
        other => format!("CONFIG_{}", other.to_uppercase()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_killed_program_says_nothing_of_the_machine() {
        test_support::require!(test_support::need::networks());
        let host = Host::new("scratch").unwrap();
        let answer = |script: &str| {
            let answer = host.run(Command::new("sh").args(["-c", script])).map(drop);
            refused(answer, |error| Unsupported::new(error.to_string(), "none"))
        };
        assert_eq!(answer("kill -9 $$"), Ok(()));
        assert!(answer("echo no >&2; exit 1").unwrap_err().reason.ends_with(": no"));
        assert_eq!(answer("exit 0"), Ok(()));
    }
}
