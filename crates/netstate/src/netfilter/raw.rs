//! nftables objects as raw messages, for callers with their own decoder.

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::NFNL_SUBSYS_NFTABLES;
use crate::dump::{Lists, attribute};
use crate::netlink::{Error, Result};

// include/uapi/linux/netfilter/nf_tables.h.
const NFT_MSG_NEWGEN: u16 = 15;
const NFT_MSG_GETGEN: u16 = 16;
const NFTA_GEN_ID: u16 = 1;

/// A socket to nftables of one network namespace.
///
/// Keep it open for repeated reads: after a change of rules, closing such a socket waits for an RCU
/// grace period in the kernel (`nft_rcv_nl_event`), some milliseconds.
pub struct Nftables {
    lists: Lists,
}

impl std::fmt::Debug for Nftables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nftables")
    }
}

impl Nftables {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If no file descriptor is available.
    pub fn open() -> Result<Nftables> {
        Ok(Nftables { lists: Lists::open(NETLINK_NETFILTER, "nftables")? })
    }

    /// Lists all objects of a kind (`NFT_MSG_GET…`) and family (`NFPROTO_…`, 0: all), with
    /// attributes that narrow the request. Passes each answer's type (`NFT_MSG_NEW…`) and payload,
    /// which begins with `struct nfgenmsg`, to `each`. Repeats an interrupted dump.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn objects(
        &mut self,
        ask: u16,
        family: u8,
        attributes: &[u8],
        object: &'static str,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<()> {
        let payload = [&[family, 0, 0, 0][..], attributes].concat();
        let request = (NFNL_SUBSYS_NFTABLES << 8 | ask, &payload[..]);
        self.lists.dump(request, object, |kind, payload| {
            // Skip messages of other subsystems.
            if kind >> 8 == NFNL_SUBSYS_NFTABLES {
                each(kind & 0xff, payload);
            }
        })
    }

    /// Returns the generation. Each change of the rules increments it.
    ///
    /// # Errors
    /// If the kernel refuses, for instance because it has no nftables.
    pub fn generation(&mut self) -> Result<u32> {
        const OBJECT: &str = "nftables generation";
        let request = (NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN, &[0; 4][..]);
        let answer = self.lists.one(request, OBJECT)?;
        let kind = answer.as_ref().map(|(kind, _)| *kind);
        let payload = answer.as_ref().and_then(|(_, payload)| payload.get(4..));
        let number = payload.and_then(|payload| attribute(payload, NFTA_GEN_ID));
        match (kind, number.and_then(|number| number.first_chunk())) {
            (Some(kind), Some(number)) if kind == NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN => {
                Ok(u32::from_be_bytes(*number))
            }
            _ => Err(Error::Answer {
                operation: "request",
                object: OBJECT.to_owned(),
                expected: "NFT_MSG_NEWGEN",
                got: format!("message of type {kind:?}"),
            }),
        }
    }
}
