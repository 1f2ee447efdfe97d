//! Packet filters of a namespace: base chains, legacy tables, hooks, connections.

pub mod connection;
pub mod conntrack;
mod ebtables;
mod hook;
pub mod raw;

use std::fs::File;
use std::io::{Read as _, Seek as _};

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

pub use ebtables::ebtables;
pub use hook::{Hooked, Hooks, flowtables, has_virtual_services, hooks};

pub use crate::dump::{attribute, text, to_attribute};
use crate::dump::{attributes, dump};
use crate::netlink::{Error, Result};

// include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h.
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_GETCHAIN: u16 = 4;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NF_DROP: u32 = 0;
/// The last of the IP hooks. In `inet`, ingress follows it.
const NF_INET_POST_ROUTING: u32 = 4;
const NFPROTO_ARP: u8 = 3;

/// A base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChain {
    /// `ip`, `ip6`, `inet`, `bridge`, `netdev`.
    pub family: &'static str,
    /// Table of the chain.
    pub table: String,
    /// Name, unique in its table.
    pub chain: String,
    /// Number of its hook (`NF_INET_…` of `linux/netfilter.h` for IP families).
    pub hook: u32,
    /// The policy drops packets.
    pub drops: bool,
}

impl BaseChain {
    /// Whether it is for IP packets at an IP hook, which bridged frames reach only with
    /// br_netfilter.
    pub fn is_of_ip(&self) -> bool {
        ["ip", "ip6", "inet"].contains(&self.family) && self.hook <= NF_INET_POST_ROUTING
    }
}

impl std::fmt::Display for BaseChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.family, self.table, self.chain)
    }
}

/// Lists the nftables base chains, including those of iptables-nft, in the calling thread's
/// namespace that IP packets or bridged frames may reach. Leaves out ARP chains.
///
/// # Errors
/// If the kernel refuses the dump, unless it has no nftables.
pub fn base_chains() -> Result<Vec<BaseChain>> {
    let mut chains = Vec::new();
    dump_all(NFT_MSG_GETCHAIN, "nftables chains", |kind, payload| {
        if kind == NFT_MSG_NEWCHAIN {
            chains.extend(base_chain(payload));
        }
    })?;
    Ok(chains)
}

/// Lists all nftables objects of a kind, of all families. Passes each message's type and payload,
/// which begins with `nfgenmsg`, to `each`.
fn dump_all(ask: u16, object: &'static str, mut each: impl FnMut(u16, &[u8])) -> Result<()> {
    let request = (NFNL_SUBSYS_NFTABLES << 8 | ask, &[0; 4][..]);
    let answer = dump(NETLINK_NETFILTER, request, object, |kind, payload| {
        if kind >> 8 == NFNL_SUBSYS_NFTABLES {
            each(kind & 0xff, payload);
        }
    });
    match answer {
        // The kernel has no nftables.
        Err(Error::Kernel { errno: Errno::EOPNOTSUPP | Errno::EINVAL, .. }) => Ok(()),
        answer => answer,
    }
}

/// Whether the calling thread's namespace has base chains for ARP, which [`base_chains`] leaves out.
///
/// # Errors
/// If the kernel refuses the dump, unless it has no nftables.
pub fn has_arp_chains() -> Result<bool> {
    let mut found = false;
    dump_all(NFT_MSG_GETCHAIN, "nftables chains", |kind, payload| {
        found |= kind == NFT_MSG_NEWCHAIN
            && payload.first() == Some(&NFPROTO_ARP)
            && attribute(payload.get(4..).unwrap_or_default(), NFTA_CHAIN_HOOK).is_some();
    })?;
    Ok(found)
}

/// Returns the family of an answer; `None` for ARP.
fn family(payload: &[u8]) -> Option<&'static str> {
    match *payload.first()? {
        // ARP chains do not affect IP packets.
        NFPROTO_ARP => None,
        1 => Some("inet"),
        2 => Some("ip"),
        5 => Some("netdev"),
        7 => Some("bridge"),
        10 => Some("ip6"),
        _ => Some("other"),
    }
}

fn base_chain(payload: &[u8]) -> Option<BaseChain> {
    let family = family(payload)?;
    let (mut table, mut chain, mut hook) = (String::new(), String::new(), None);
    let mut drops = false;
    for (kind, value) in attributes(payload.get(4..)?) {
        match kind {
            NFTA_CHAIN_TABLE => table = text(value),
            NFTA_CHAIN_NAME => chain = text(value),
            NFTA_CHAIN_POLICY => drops = big_endian(Some(value)) == NF_DROP,
            NFTA_CHAIN_HOOK => hook = Some(big_endian(attribute(value, NFTA_HOOK_HOOKNUM))),
            _ => {}
        }
    }
    Some(BaseChain { family, table, chain, hook: hook?, drops })
}

/// Decodes a big-endian number; the maximum if it is missing.
fn big_endian(value: Option<&[u8]>) -> u32 {
    value.and_then(|value| value.first_chunk()).map_or(u32::MAX, |bytes| u32::from_be_bytes(*bytes))
}

/// Files that list the tables of iptables-legacy and ip6tables-legacy, with the programs.
const LEGACY: [(&str, &str); 2] =
    [("ip_tables_names", "iptables"), ("ip6_tables_names", "ip6tables")];

/// Lists the tables of iptables-legacy and ip6tables-legacy in the calling thread's namespace.
/// Their hooks are registered even if they have no rules.
pub fn legacy_tables() -> Vec<String> {
    LegacyTables::default().names()
}

/// [`legacy_tables`] of one namespace for repeated calls: the files stay open.
#[derive(Debug, Default)]
pub struct LegacyTables {
    files: [Option<File>; 2],
}

impl LegacyTables {
    /// Whether both files are open, so that no further open is needed.
    pub fn are_listed(&self) -> bool {
        self.files.iter().all(Option::is_some)
    }

    /// Lists the tables. A file that was missing before is opened in the calling thread's
    /// namespace.
    pub fn names(&mut self) -> Vec<String> {
        let mut tables = Vec::new();
        for (file, (list, program)) in self.files.iter_mut().zip(LEGACY) {
            if file.is_none() {
                *file = open_list(list);
            }
            let names = file.as_mut().map(listed).unwrap_or_default();
            tables.extend(names.iter().map(|table| format!("{program}-legacy {table}")));
        }
        tables
    }
}

/// Lists the tables of iptables-legacy or ip6tables-legacy that exist in the calling thread's
/// namespace.
pub fn legacy_table_names(ipv6: bool) -> Vec<String> {
    let (list, _) = LEGACY[usize::from(ipv6)];
    legacy_names(list)
}

/// Lists the names in a file of tables, in the calling thread's namespace; none if the kernel has
/// no such file.
fn legacy_names(list: &str) -> Vec<String> {
    open_list(list).as_mut().map(listed).unwrap_or_default()
}

/// Whether br_netfilter passes bridged packets of a namespace to IP rules
/// (`net.bridge.bridge-nf-call-*`), for repeated calls: the files stay open.
#[derive(Debug, Default)]
pub struct BridgeCalls {
    files: [Option<File>; 2],
}

impl BridgeCalls {
    /// Whether it does. A file that was missing before (module not loaded) is opened in the calling
    /// thread's namespace.
    pub fn are_made(&mut self) -> bool {
        let mut made = false;
        for (file, table) in self.files.iter_mut().zip(["iptables", "ip6tables"]) {
            if file.is_none() {
                // /proc/sys/net shows the namespace of the thread that opens it.
                *file = File::open(format!("/proc/sys/net/bridge/bridge-nf-call-{table}")).ok();
            }
            let mut digit = [0];
            let read = file.as_mut().map(|f| f.rewind().and_then(|()| f.read_exact(&mut digit)));
            match read {
                Some(Ok(())) => made |= digit != *b"0",
                // The module was unloaded.
                Some(Err(_)) => *file = None,
                None => {}
            }
        }
        made
    }
}

fn open_list(list: &str) -> Option<File> {
    File::open(format!("/proc/thread-self/net/{list}")).ok()
}

/// Reads a list of tables from its start.
fn listed(file: &mut File) -> Vec<String> {
    // There are at most five tables with names shorter than ten letters.
    let mut text = [0; 256];
    // No pread, which the confined `overlane vtep` may not call.
    let length = file.rewind().and_then(|()| file.read(&mut text)).unwrap_or(0);
    String::from_utf8_lossy(&text[..length]).lines().map(str::to_owned).collect()
}
