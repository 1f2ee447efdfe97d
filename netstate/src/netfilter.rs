//! Whether packet filters have rules in this namespace.

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

use crate::netlink::{Error, Result};

// include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h.
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_GETCHAIN: u16 = 4;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFPROTO_ARP: u8 = 3;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;

/// A chain that packets are handed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChain {
    /// `ip`, `ip6`, `inet`, `bridge`, `netdev`.
    pub family: &'static str,
    /// Table.
    pub table: String,
    /// Chain.
    pub chain: String,
}

/// Chains of nftables, those of iptables-nft among them, in the calling thread's
/// namespace that IP packets or bridged frames can come to. ARP's are left out.
///
/// # Errors
/// When the kernel refuses the dump for another reason than not having nftables.
pub fn base_chains() -> Result<Vec<BaseChain>> {
    let failed = |operation| {
        move |e: std::io::Error| Error::Sys(sys::Error::io(operation, "nftables chains", &e))
    };
    let mut socket = Socket::new(NETLINK_NETFILTER).map_err(failed("socket"))?;
    socket.bind_auto().map_err(failed("bind"))?;
    // nlmsghdr and nfgenmsg (family unspecified: all).
    let mut request = Vec::new();
    request.extend(20u32.to_ne_bytes());
    request.extend((NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN).to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend([0; 12]);
    socket.send_to(&request, &SocketAddr::new(0, 0), 0).map_err(failed("list"))?;
    let mut chains = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full().map_err(failed("list"))?;
        let mut rest = &bytes[..];
        while let Some((kind, payload, next)) = message(rest) {
            rest = next;
            match kind {
                NLMSG_DONE => return Ok(chains),
                NLMSG_ERROR => {
                    let code = payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                    return match Errno::from_raw(-code) {
                        // A kernel without nftables.
                        Errno::EOPNOTSUPP | Errno::EINVAL => Ok(chains),
                        errno => Err(Error::Kernel {
                            operation: "list",
                            object: "nftables chains".to_owned(),
                            errno,
                        }),
                    };
                }
                kind if kind == NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN => {
                    chains.extend(base_chain(payload));
                }
                _ => {}
            }
        }
    }
}

/// Type, payload and what follows of the first netlink message.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let payload = bytes.get(16..length)?;
    Some((kind, payload, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn base_chain(payload: &[u8]) -> Option<BaseChain> {
    let family = match *payload.first()? {
        NFPROTO_ARP => return None,
        1 => "inet",
        2 => "ip",
        5 => "netdev",
        7 => "bridge",
        10 => "ip6",
        _ => "other",
    };
    let mut chain = BaseChain { family, table: String::new(), chain: String::new() };
    let mut hooked = false;
    let mut rest = payload.get(4..)?;
    while let Some(header) = rest.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        // The two highest bits are flags.
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = rest.get(4..length)?;
        let text = || String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
        match kind {
            NFTA_CHAIN_TABLE => chain.table = text(),
            NFTA_CHAIN_NAME => chain.chain = text(),
            NFTA_CHAIN_HOOK => hooked = true,
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    hooked.then_some(chain)
}

/// Tables of the older iptables and ip6tables that exist in the calling thread's
/// namespace: their hooks are in place even where they hold no rule.
pub fn legacy_tables() -> Vec<String> {
    let mut tables = Vec::new();
    for (file, program) in [("ip_tables_names", "iptables"), ("ip6_tables_names", "ip6tables")] {
        // Missing where the kernel has none of them.
        let names =
            std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        tables.extend(names.lines().map(|table| format!("{program}-legacy {table}")));
    }
    tables
}
