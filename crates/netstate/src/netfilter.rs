//! Packet filters in this namespace: which there are, their rules, and which of these
//! clamp the maximum segment size of TCP.

mod clamp;
mod ebtables;
mod hook;
pub mod raw;
mod rule;

use std::fs::File;
use std::io::{Read as _, Seek as _};

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

pub use clamp::{Clamp, Match, legacy_clamps, nft_clamp, nft_clamps, table_clamps};
pub use ebtables::ebtables;
pub use hook::{Hooked, flowtables, has_virtual_services, unexplained_hooks};
pub use rule::{Expression, Rule, rules};

pub use crate::dump::{attribute, text};
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
/// The last of IP's own hooks; `inet` has ingress behind it.
const NF_INET_POST_ROUTING: u32 = 4;
const NFPROTO_ARP: u8 = 3;

/// A chain that packets are handed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChain {
    /// `ip`, `ip6`, `inet`, `bridge`, `netdev`.
    pub family: &'static str,
    /// Table that has the chain.
    pub table: String,
    /// Name, unique in its table.
    pub chain: String,
    /// Number of its hook (`NF_INET_…` of `linux/netfilter.h` for IP families).
    pub hook: u32,
    /// What comes to its end is dropped.
    pub drops: bool,
}

impl BaseChain {
    /// Whether it is for IP packets at one of IP's own hooks, so that a bridge's frames come
    /// to it by br_netfilter only.
    pub fn is_of_ip(&self) -> bool {
        ["ip", "ip6", "inet"].contains(&self.family) && self.hook <= NF_INET_POST_ROUTING
    }
}

impl std::fmt::Display for BaseChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.family, self.table, self.chain)
    }
}

/// Chains of nftables, those of iptables-nft among them, in the calling thread's
/// namespace that IP packets or bridged frames can come to. ARP's are left out.
///
/// # Errors
/// When the kernel refuses the dump for another reason than not having nftables.
pub fn base_chains() -> Result<Vec<BaseChain>> {
    let mut chains = Vec::new();
    dump_all(NFT_MSG_GETCHAIN, "nftables chains", |kind, payload| {
        if kind == NFT_MSG_NEWCHAIN {
            chains.extend(base_chain(payload));
        }
    })?;
    Ok(chains)
}

/// Every object of nftables of a kind, of all families; its message's type and
/// payload, which begins with `nfgenmsg`, go to `each`.
fn dump_all(ask: u16, object: &'static str, mut each: impl FnMut(u16, &[u8])) -> Result<()> {
    let request = (NFNL_SUBSYS_NFTABLES << 8 | ask, &[0; 4][..]);
    let answer = dump(NETLINK_NETFILTER, request, object, |kind, payload| {
        if kind >> 8 == NFNL_SUBSYS_NFTABLES {
            each(kind & 0xff, payload);
        }
    });
    match answer {
        // A kernel without nftables.
        Err(Error::Kernel { errno: Errno::EOPNOTSUPP | Errno::EINVAL, .. }) => Ok(()),
        answer => answer,
    }
}

/// The family of an answer, `None` for ARP's.
fn family(payload: &[u8]) -> Option<&'static str> {
    match *payload.first()? {
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

/// A number as nftables sends it; the largest where there is none.
fn big_endian(value: Option<&[u8]>) -> u32 {
    value.and_then(|value| value.first_chunk()).map_or(u32::MAX, |bytes| u32::from_be_bytes(*bytes))
}

/// The files that list tables of the older iptables and ip6tables, and those programs.
const LEGACY: [(&str, &str); 2] =
    [("ip_tables_names", "iptables"), ("ip6_tables_names", "ip6tables")];

/// Tables of the older iptables and ip6tables that exist in the calling thread's
/// namespace: their hooks are in place even where they hold no rule.
pub fn legacy_tables() -> Vec<String> {
    LegacyTables::default().names()
}

/// [`legacy_tables`] of one namespace, for who looks often: the files are opened once.
#[derive(Debug, Default)]
pub struct LegacyTables {
    files: [Option<File>; 2],
}

impl LegacyTables {
    /// Whether the lists of both programs were there, so that nothing will be opened anew.
    pub fn are_listed(&self) -> bool {
        self.files.iter().all(Option::is_some)
    }

    /// The tables. A list that was not there before is opened in the calling thread's
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

/// Names of a file of tables, in the calling thread's namespace; none where the kernel has
/// no such file.
fn legacy_names(list: &str) -> Vec<String> {
    open_list(list).as_mut().map(listed).unwrap_or_default()
}

/// Whether br_netfilter has the rules of IP look at what bridges of one namespace forward
/// (`net.bridge.bridge-nf-call-*`), for who looks often: the files are kept open.
#[derive(Debug, Default)]
pub struct BridgeCalls {
    files: [Option<File>; 2],
}

impl BridgeCalls {
    /// Whether it does. A file that was not there before, as the module was not, is opened
    /// in the calling thread's namespace.
    pub fn are_made(&mut self) -> bool {
        let mut made = false;
        for (file, table) in self.files.iter_mut().zip(["iptables", "ip6tables"]) {
            if file.is_none() {
                // The tree under /proc/sys/net is that of the thread that opens it.
                *file = File::open(format!("/proc/sys/net/bridge/bridge-nf-call-{table}")).ok();
            }
            let mut digit = [0];
            let read = file.as_mut().map(|f| f.rewind().and_then(|()| f.read_exact(&mut digit)));
            match read {
                Some(Ok(())) => made |= digit != *b"0",
                // The module has gone.
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

/// The lines of a list of tables, from its beginning.
fn listed(file: &mut File) -> Vec<String> {
    // Five tables there can be, of less than ten letters.
    let mut text = [0; 256];
    // No pread: what runs confined (overlane vtep) may not call it.
    let length = file.rewind().and_then(|()| file.read(&mut text)).unwrap_or(0);
    String::from_utf8_lossy(&text[..length]).lines().map(str::to_owned).collect()
}
