//! Modes `…@guest`: modes built and measured inside one guest, whose kernel has features that
//! this machine's kernel lacks.
//!
//! The whole run is in the guest: hosts, wire, load, samples. The code is the same as for the plain
//! modes. Figures depend on the guest's kernel and CPUs, so compare `…@guest` modes only with
//! each other.

use crate::bgp::{Daemon, evpn};
use crate::guest::exec::ExecGuest;
use crate::guest::{Kernel, supported};
use crate::guest_files::Besides;
use crate::unsupported::Supported;
use crate::{Capabilities, Mode, Result, Unsupported, ovs};

/// Group name that `--modes` accepts for all of them.
pub const GROUP: &str = "guest";
/// Description of the group.
pub const TITLE: &str = "modes inside one guest, for features that this machine's kernel lacks";
/// Suffix of the name of the mode that is built in the guest.
const SUFFIX: &str = "@guest";
/// Modules that every testbed needs.
const EVERY: &[&str] = &["veth", "bridge"];

/// A mode inside a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtGuest {
    /// Name on the command line.
    pub name: &'static str,
    /// The path, hop by hop, with the remark that it is inside a guest.
    pub path: &'static str,
    /// Kernel modules that it needs besides those of every testbed.
    modules: &'static [&'static str],
    daemons: Daemons,
}

/// Programs of this machine that a mode in a guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Daemons {
    None,
    /// Open vSwitch with the kernel datapath.
    OpenVSwitch,
    Bgp(Daemon),
    /// FRR with support for single VXLAN devices.
    EvpnSvd,
}

impl Daemons {
    fn installed(self, machine: &Capabilities) -> Supported {
        match self {
            Daemons::None => Ok(()),
            // The guest's kernel has the datapath; only the programs come from this machine.
            Daemons::OpenVSwitch => ovs::installed(),
            Daemons::Bgp(daemon) => daemon.installed(machine),
            Daemons::EvpnSvd => {
                Daemon::Frr.installed(machine)?;
                evpn::knows_devices_for_many()
            }
        }
    }

    /// Returns the daemon's files that a guest needs.
    fn files(self) -> Besides {
        match self {
            Daemons::None => Besides::default(),
            Daemons::OpenVSwitch => ovs::files(),
            Daemons::Bgp(daemon) => daemon.files(),
            Daemons::EvpnSvd => Daemon::Frr.files(),
        }
    }
}

/// A mode with the path and the modules given here.
macro_rules! at_guest {
    ($name:literal, $path:literal, $modules:expr) => {
        at_guest!($name, $path, $modules, Daemons::None)
    };
    ($name:literal, $path:literal, $modules:expr, $daemons:expr) => {
        AtGuest {
            name: concat!($name, "@guest"),
            path: concat!($path, " (inside one guest: compare @guest modes only)"),
            modules: &$modules,
            daemons: $daemons,
        }
    };
}

/// All of them, the baseline first.
static ALL: [AtGuest; 14] = [
    at_guest!("host", "host NIC - wire - host NIC", []),
    at_guest!("bridge", "tenant - veth - bridge with the NIC as port - wire", []),
    at_guest!("macvlan", "tenant's macvlan on the NIC - wire", ["macvlan"]),
    at_guest!("ipvlan", "tenant's ipvlan on the NIC - wire", ["ipvlan"]),
    at_guest!("vlan", "tenant - veth - bridge - VLAN device on the NIC - wire", ["8021q"]),
    at_guest!("routed", "tenant - veth - host route - wire, one route per tenant", []),
    at_guest!("netem", "host NIC - netem: 1 ms - wire - netem: 1 ms - host NIC", ["sch_netem"]),
    at_guest!(
        "bgp-ipip",
        "tenant - veth - host route by BIRD - kernel IPIP device - wire",
        ["ipip"],
        Daemons::Bgp(Daemon::Bird)
    ),
    at_guest!("vxlan", "tenant - veth - bridge - kernel VXLAN device - wire", ["vxlan"]),
    at_guest!("geneve", "tenant - veth - bridge - kernel Geneve device - wire", ["geneve"]),
    at_guest!(
        "evpn-svd",
        "tenant - veth - bridge's VLAN - one VXLAN device for all VNIs, filled by FRR - wire",
        ["vxlan", "8021q"],
        Daemons::EvpnSvd
    ),
    at_guest!(
        "evpn-l3",
        "tenant - veth - VRF's route by FRR (EVPN type 5) - bridge - VXLAN device - wire",
        ["vrf", "vxlan"],
        Daemons::Bgp(Daemon::Frr)
    ),
    at_guest!(
        "ovs-vlan",
        "tenant - veth - Open vSwitch's kernel datapath with a VLAN tag - wire",
        ["openvswitch"],
        Daemons::OpenVSwitch
    ),
    at_guest!(
        "ovs-vxlan",
        "tenant - veth - Open vSwitch's kernel datapath - kernel VXLAN device - wire",
        ["openvswitch", "vxlan"],
        Daemons::OpenVSwitch
    ),
];

/// Returns every mode `…@guest`, the baseline first.
pub fn all() -> &'static [AtGuest] {
    &ALL
}

/// Returns the mode `…@guest` of this name.
pub fn find(name: &str) -> Option<&'static AtGuest> {
    ALL.iter().find(|mode| mode.name == name)
}

impl AtGuest {
    /// Returns the mode that is built in the guest.
    ///
    /// # Panics
    /// Never: a test checks all entries.
    pub fn mode(&self) -> &'static dyn Mode {
        let name = self.name.strip_suffix(SUFFIX);
        name.and_then(crate::find)
            .unwrap_or_else(|| panic!("{} is based on no known mode", self.name))
    }

    /// Returns the outside name of a mode inside the guest.
    pub fn outside(mode: &str) -> String {
        format!("{mode}{SUFFIX}")
    }

    /// Checks whether a guest can build it on this machine.
    ///
    /// # Errors
    /// The reason and the remedy. A missing module of the guest's kernel is named.
    pub fn probe(&self, machine: &Capabilities) -> Supported {
        supported(machine)?;
        self.daemons.installed(machine)?;
        Kernel::find()?.and(EVERY).and_then(|kernel| kernel.and(self.modules)).map(drop).map_err(
            |missing| {
                Unsupported::new(
                    missing.to_string(),
                    "use a kernel whose package has it (--guest-kernel FILE, such as Debian's \
                     linux-image-cloud-amd64)",
                )
            },
        )
    }
}

/// Boots a guest that can build these modes. All of them must have been probed.
///
/// # Errors
/// A guest that does not boot, with the last lines of its console.
pub fn start(modes: &[&AtGuest]) -> Result<ExecGuest> {
    let modules = modes.iter().flat_map(|mode| mode.modules);
    let modules: Vec<&str> = EVERY.iter().chain(modules).copied().collect();
    let mut besides = Besides::default();
    for (at, mode) in modes.iter().enumerate() {
        // Modes with the same daemons share the files.
        if modes[..at].iter().any(|before| before.daemons == mode.daemons) {
            continue;
        }
        let Besides { programs, files } = mode.daemons.files();
        besides.programs.extend(programs);
        besides.files.extend(files);
    }
    ExecGuest::start(&modules, &besides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_mode_in_a_guest() {
        for (at, mode) in all().iter().enumerate() {
            let inside = mode.mode();
            assert_eq!(AtGuest::outside(inside.name()), mode.name);
            assert_eq!(find(mode.name), Some(mode));
            assert!(crate::find(mode.name).is_none() && !inside.in_guests());
            assert!(all()[..at].iter().all(|other| other.name != mode.name));
            // The path of the Open vSwitch modes depends on the datapath.
            if mode.daemons != Daemons::OpenVSwitch {
                assert!(mode.path.starts_with(inside.path()), "{}", mode.path);
            }
        }
        assert_eq!(all()[0].name, "host@guest", "the baseline comes first");
        assert!(crate::groups().iter().all(|group| group.name != GROUP));
        assert!(crate::find(GROUP).is_none());
    }
}
