//! Other users of netfilter hooks: functions of modules from the kernel's list (nfnetlink_hook, if
//! available), IPVS, flowtables.

use std::fs::File;
use std::io::Read as _;

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use super::{attribute, attributes, big_endian, dump_all, family, text};
use crate::dump::Lists;
use crate::netlink::{Error, Result};

// include/uapi/linux/netfilter/nfnetlink_hook.h, nf_tables.h, linux/netfilter.h.
const NFNL_SUBSYS_HOOK: u16 = 12;
const NFNLA_HOOK_HOOKNUM: u16 = 1;
const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;
const NFNLA_HOOK_MODULE_NAME: u16 = 5;
const NFNLA_HOOK_CHAIN_INFO: u16 = 6;
const NFNLA_HOOK_INFO_TYPE: u16 = 2;
const NFNL_HOOK_TYPE_NFTABLES: u32 = 1;
const NFNL_HOOK_TYPE_BPF: u32 = 2;
const NFT_MSG_NEWFLOWTABLE: u16 = 22;
const NFT_MSG_GETFLOWTABLE: u16 = 23;
const NFTA_FLOWTABLE_TABLE: u16 = 1;
const NFTA_FLOWTABLE_NAME: u16 = 2;
/// Families with their numbers, and the number of hooks of each.
const FAMILIES: [(u8, &str, u32); 3] = [(2, "ip", 5), (10, "ip6", 5), (7, "bridge", 6)];

/// Functions that need no further check: nftables chains and their NAT, legacy tables and
/// br_netfilter (all read separately), connection tracking, which rules use, AppArmor's, which
/// passes packets without a socket (`apparmor_ip_postroute`, security/apparmor/lsm.c), and
/// SELinux's, whose caller checks whether they decide anything (security/selinux/hooks.c).
const KNOWN: &[&str] = &[
    "nft_do_chain",
    "nft_nat_do_chain",
    "ipt_do_table",
    "ip6t_do_table",
    "iptable_",
    "ip6table_",
    "ebt_",
    "ebtable_",
    "nf_nat_",
    "ipv4_conntrack_",
    "ipv6_conntrack_",
    "ipv4_confirm",
    "ipv6_confirm",
    "nf_confirm",
    "ipv6_defrag",
    "br_nf_",
    "ip_sabotage_in",
    "apparmor_ip_postroute",
    "selinux_ip_forward",
    "selinux_ip_output",
    "selinux_ip_postroute",
];

/// A function registered at a hook.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hooked {
    /// `ip`, `ip6`, `bridge`.
    pub family: &'static str,
    /// Hook number.
    pub hook: u32,
    /// Function, and its module if there is one.
    pub function: String,
}

impl std::fmt::Display for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at hook {} of {}", self.function, self.hook, self.family)
    }
}

/// The functions at netfilter's hooks of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Functions that are neither read elsewhere nor known to pass every packet.
    pub unexplained: Vec<Hooked>,
    /// Conntrack sees the packets that arrive (`ipv4_conntrack_in`, `ipv6_conntrack_in`).
    pub tracks: bool,
}

/// Reads the functions at hooks of the calling thread's namespace. `None` if the kernel cannot list
/// hooks (nfnetlink_hook).
///
/// # Errors
/// If the kernel refuses the list for another reason.
pub fn hooks() -> Result<Option<Hooks>> {
    const OBJECT: &str = "netfilter hooks";
    let mut lists = Lists::open(NETLINK_NETFILTER, OBJECT)?;
    let mut found = Hooks::default();
    for (number, family, hooks) in FAMILIES {
        for hook in 0..hooks {
            let mut payload = vec![number, 0, 0, 0];
            payload.extend([8, 0]);
            payload.extend(NFNLA_HOOK_HOOKNUM.to_ne_bytes());
            payload.extend(hook.to_be_bytes());
            let request = (NFNL_SUBSYS_HOOK << 8, &payload[..]);
            let answer = lists.dump(request, OBJECT, |kind, payload| {
                if kind >> 8 == NFNL_SUBSYS_HOOK {
                    let attributes = payload.get(4..).unwrap_or_default();
                    let function = unexplained(attributes);
                    let function = function.map(|function| Hooked { family, hook, function });
                    found.unexplained.extend(function);
                    found.tracks |= is_conntrack(attributes);
                }
            });
            match answer {
                Ok(()) => {}
                // Nothing is registered, or the family is not built in.
                Err(Error::Kernel { errno: Errno::ENOENT | Errno::EOPNOTSUPP, .. }) => {}
                // The kernel has no list, or not this hook of the family.
                Err(Error::Kernel { errno: Errno::EINVAL, .. }) if hook > 0 => {}
                Err(Error::Kernel { errno: Errno::EINVAL, .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(Some(found))
}

/// Whether the function of an answer is conntrack's.
fn is_conntrack(payload: &[u8]) -> bool {
    let function = attribute(payload, NFNLA_HOOK_FUNCTION_NAME).map(text).unwrap_or_default();
    ["ipv4_conntrack_", "ipv6_conntrack_"].iter().any(|of| function.starts_with(of))
}

/// Returns the function of an answer, if it is unexplained.
fn unexplained(payload: &[u8]) -> Option<String> {
    let chain = attribute(payload, NFNLA_HOOK_CHAIN_INFO);
    let kind = chain.map(|chain| big_endian(attribute(chain, NFNLA_HOOK_INFO_TYPE)));
    match kind {
        // Chains and BPF links are listed elsewhere.
        Some(NFNL_HOOK_TYPE_NFTABLES | NFNL_HOOK_TYPE_BPF) => return None,
        // A type of a newer kernel.
        Some(other) => return Some(format!("hook of type {other}")),
        None => {}
    }
    let function = attribute(payload, NFNLA_HOOK_FUNCTION_NAME).map(text).unwrap_or_default();
    // The function belongs to a chain, a program or a module that is read otherwise.
    if KNOWN.iter().any(|known| function.starts_with(known)) {
        return None;
    }
    let name = if function.is_empty() { "unnamed function".to_owned() } else { function };
    let module = attribute(payload, NFNLA_HOOK_MODULE_NAME).map(text);
    Some(module.map_or(name.clone(), |module| format!("{name} [{module}]")))
}

/// Lists the nftables flowtables in the calling thread's namespace (`table name`). Packets of their
/// connections bypass the hooks, at ingress.
///
/// # Errors
/// If the kernel refuses the dump, unless it has no flowtables.
pub fn flowtables() -> Result<Vec<String>> {
    let mut found = Vec::new();
    dump_all(NFT_MSG_GETFLOWTABLE, "flowtables", |kind, payload| {
        if kind == NFT_MSG_NEWFLOWTABLE {
            found.extend(flowtable(payload));
        }
    })?;
    Ok(found)
}

fn flowtable(payload: &[u8]) -> Option<String> {
    let family = family(payload)?;
    let (mut table, mut name) = (String::new(), String::new());
    for (kind, value) in attributes(payload.get(4..)?) {
        match kind {
            NFTA_FLOWTABLE_TABLE => table = text(value),
            NFTA_FLOWTABLE_NAME => name = text(value),
            _ => {}
        }
    }
    Some(format!("nftables flowtable {family} {table} {name}"))
}

/// Whether IPVS has a service in the calling thread's namespace, or may have one.
pub fn has_virtual_services() -> bool {
    match File::open("/proc/thread-self/net/ip_vs") {
        Ok(mut file) => {
            // The header has three lines.
            let mut start = [0; 1024];
            let length = file.read(&mut start).unwrap_or(start.len());
            start[..length].iter().filter(|byte| **byte == b'\n').count() > 3
        }
        // An unreadable file may list services.
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::to_attribute;

    #[test]
    fn a_hook_is_explained_by_its_chain_its_program_or_its_function() {
        let function = |name: &str| to_attribute(NFNLA_HOOK_FUNCTION_NAME, name.as_bytes());
        let module = |name: &str| to_attribute(NFNLA_HOOK_MODULE_NAME, name.as_bytes());
        let of_type = |number: u32| {
            to_attribute(
                NFNLA_HOOK_CHAIN_INFO,
                &to_attribute(NFNLA_HOOK_INFO_TYPE, &number.to_be_bytes()),
            )
        };
        for known in [
            "ipv4_conntrack_in\0",
            "nf_nat_ipv4_out\0",
            "apparmor_ip_postroute\0",
            "selinux_ip_forward\0",
        ] {
            assert_eq!(unexplained(&function(known)), None, "{known:?}");
        }
        assert_eq!(unexplained(&[function("nft_x"), of_type(1)].concat()), None);
        assert_eq!(unexplained(&of_type(2)), None);
        assert_eq!(unexplained(&of_type(3)).unwrap(), "hook of type 3");
        assert_eq!(unexplained(&function("smack_ip_output\0")).unwrap(), "smack_ip_output");
        assert_eq!(
            unexplained(&[function("ip_vs_in_hook\0"), module("ip_vs\0")].concat()).unwrap(),
            "ip_vs_in_hook [ip_vs]"
        );
        assert_eq!(unexplained(&[]).unwrap(), "unnamed function");
        assert!(is_conntrack(&function("ipv4_conntrack_in\0")));
        assert!(!is_conntrack(&function("nf_confirm\0")) && !is_conntrack(&[]));
    }

    #[test]
    fn a_flowtable_is_named() {
        let payload =
            [vec![1, 0, 0, 0], to_attribute(1, b"filter\0"), to_attribute(2, b"fast\0")].concat();
        assert_eq!(flowtable(&payload).unwrap(), "nftables flowtable inet filter fast");
    }

    #[test]
    fn a_kernel_without_the_list_says_so() {
        // Without privileges, the kernel may refuse the list or have none.
        if let Ok(Some(hooks)) = hooks() {
            assert!(hooks.unexplained.iter().all(|hook| !hook.function.is_empty()));
        }
    }
}
