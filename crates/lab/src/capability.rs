//! What this machine and kernel can build, found by trying it.

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

/// Of the bridge that is made to ask of VLANs; Ethernet's, bytes.
const LEAST_MTU: u32 = 1500;
/// Any that is not reserved.
const PROBED_VLAN: VlanId = match VlanId::new(10) {
    Ok(vlan) => vlan,
    Err(_) => panic!("evaluated by the compiler"),
};

/// Asks the kernel and the machine, each question once.
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
    /// Makes a scratch host to try things in.
    ///
    /// # Errors
    /// Without the right to make network namespaces.
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

    /// With what rights this process runs.
    pub fn privileges(&self) -> Privileges {
        self.privileges
    }

    /// Whether the kernel has every one of these link kinds.
    pub fn links(&self, kinds: &[&'static str]) -> Supported {
        kinds.iter().try_for_each(|kind| self.link(kind))
    }

    fn link(&self, kind: &'static str) -> Supported {
        // A question that panicked has entered no answer, so the map is whole.
        let mut known = self.kinds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.entry(kind).or_insert_with(|| self.try_link(kind)).clone()
    }

    fn try_link(&self, kind: &'static str) -> Supported {
        const NAME: &str = "probe";
        let netlink = self.scratch.netlink();
        let answer = netlink.add_kind(NAME, kind);
        // Where the kernel refused there is nothing to delete.
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
                    format!("kernel refuses to make a {kind} device: {}", errno.desc()),
                    "run as root",
                ))
            }
            // Any other answer (a missing parent link, say) comes from the
            // driver: it is there.
            _ => Ok(()),
        }
    }

    /// Whether the kernel has the queueing discipline netem.
    pub fn netem(&self) -> Supported {
        const LINK: &str = "lo";
        // It stays there, and does nothing: `tc`'s own limit, and no time.
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

    /// Whether the kernel's bridges can filter VLANs. One that cannot takes the setting.
    pub fn vlan_filtering(&self) -> Supported {
        const BRIDGE: &str = "probe";
        self.links(&["bridge"])?;
        let netlink = self.scratch.netlink();
        let joined = netlink
            .add_bridge(BRIDGE, mac(self.scratch.name(), BRIDGE), LEAST_MTU)
            .and_then(|()| netlink.join_vlan(BRIDGE, PROBED_VLAN, Membership::Bridge));
        // Where it could not be made there is nothing to delete.
        let _ = netlink.delete_link(BRIDGE);
        joined.map_err(|error| {
            Unsupported::new(
                match error.errno() {
                    Some(Errno::EOPNOTSUPP) => "kernel's bridges filter no VLANs".to_owned(),
                    _ => error.to_string(),
                },
                "use a kernel with CONFIG_BRIDGE_VLAN_FILTERING",
            )
        })
    }

    /// Whether the kernel speaks IPv6.
    pub fn ipv6(&self) -> Supported {
        const SETTINGS: &str = "/proc/sys/net/ipv6/conf/all";
        // Neither built without it nor started with ipv6.disable=1 has it.
        Path::new(SETTINGS).exists().then_some(()).ok_or_else(|| {
            Unsupported::new(
                format!("kernel has no IPv6 ({SETTINGS} does not exist)"),
                "load it (modprobe ipv6), start without ipv6.disable=1, or use a kernel with CONFIG_IPV6",
            )
        })
    }

    /// Whether a program is installed, by its Debian package.
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

    /// Whether nftables works: the program, and `rules` taken by the kernel.
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

    /// Whether the rules that `load` gives a host by iptables are taken by the kernel: those
    /// of OpenStack's L3 agent.
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

    /// Whether Open vSwitch is installed and can move packets: in the kernel, or
    /// else in user space, which makes a TAP device for each bridge.
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
                // The kernel's datapath makes no TAP devices.
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

    /// Whether Docker Engine is installed and may be run.
    pub fn docker(&self) -> Supported {
        if self.privileges != Privileges::Root {
            // It makes control groups and mounts that a user namespace forbids.
            return Err(Unsupported::without_root("Docker Engine needs root", "run as root"));
        }
        docker::installed()
    }

    /// Whether the kernel takes the fast path's BPF programs from this process.
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

    /// Whether two TAPs can be joined by that engine of `overlane tapbridge`: `vtep`
    /// reads its TAPs as `epoll` and `uring` do.
    pub fn engine(&self, engine: Engine) -> Supported {
        self.tun()?;
        let mut known = self.engines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.entry(engine.name()).or_insert_with(|| self.try_engine(engine)).clone()
    }

    fn try_engine(&self, engine: Engine) -> Supported {
        // A program that another thread starts has a copy of every descriptor until its `exec`:
        // the TAPs of another engine's probe may outlive it.
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

    /// Whether this process may open `/dev/net/tun`.
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

/// What a program's failure says of the machine: nothing, if somebody killed the
/// program. Building the mode asks again then, and fails with what it is told.
fn refused(
    answer: Result<()>,
    unsupported: impl FnOnce(testbed::Error) -> Unsupported,
) -> Supported {
    match answer {
        Ok(()) | Err(testbed::Error::Killed { .. }) => Ok(()),
        Err(error) => Err(unsupported(error)),
    }
}

/// The module that brings a link kind, as people know it.
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
