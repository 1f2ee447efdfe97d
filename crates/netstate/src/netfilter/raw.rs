//! Objects of nftables as messages, for who decodes them on its own.

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

use super::NFNL_SUBSYS_NFTABLES;
use crate::dump::{attribute, dump};
use crate::netlink::{Error, Result};

// include/uapi/linux/netfilter/nf_tables.h.
const NFT_MSG_NEWGEN: u16 = 15;
const NFT_MSG_GETGEN: u16 = 16;
const NFTA_GEN_ID: u16 = 1;
const NLM_F_REQUEST: u16 = 1;
/// `struct nlmsghdr`, `struct nfgenmsg`.
const HEADERS: usize = 16 + 4;

/// Asks for all objects of a kind (`NFT_MSG_GET…`) of a family (`NFPROTO_…`, 0: all), with
/// attributes that narrow the question. Each answer's type (`NFT_MSG_NEW…`) and payload,
/// which begins with `struct nfgenmsg`, go to `each`. An interrupted dump is asked again.
///
/// # Errors
/// When the kernel refuses.
pub fn objects(
    ask: u16,
    family: u8,
    attributes: &[u8],
    object: &'static str,
    mut each: impl FnMut(u16, &[u8]),
) -> Result<()> {
    let payload = [&[family, 0, 0, 0][..], attributes].concat();
    let request = (NFNL_SUBSYS_NFTABLES << 8 | ask, &payload[..]);
    dump(NETLINK_NETFILTER, request, object, |kind, payload| {
        if kind >> 8 == NFNL_SUBSYS_NFTABLES {
            each(kind & 0xff, payload);
        }
    })
}

/// The generation of the calling thread's namespace: each change of the rules adds one to it.
///
/// # Errors
/// When the kernel refuses, for instance as it has no nftables.
pub fn generation() -> Result<u32> {
    const OBJECT: &str = "nftables generation";
    let failed =
        |operation| move |e: std::io::Error| Error::Sys(sys::Error::io(operation, OBJECT, &e));
    let mut socket = Socket::new(NETLINK_NETFILTER).map_err(failed("socket"))?;
    socket.bind_auto().map_err(failed("bind"))?;
    let mut request = (HEADERS as u32).to_ne_bytes().to_vec();
    request.extend((NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN).to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend([0; 12]);
    socket.send_to(&request, &SocketAddr::new(0, 0), 0).map_err(failed("ask for"))?;
    let (bytes, _) = socket.recv_from_full().map_err(failed("read"))?;
    let kind = bytes.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    let number = bytes.get(HEADERS..).and_then(|payload| attribute(payload, NFTA_GEN_ID));
    match (kind, number.and_then(|number| number.first_chunk())) {
        (Some(kind), Some(number)) if kind == NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN => {
            Ok(u32::from_be_bytes(*number))
        }
        _ => Err(Error::Answer {
            operation: "ask for",
            object: OBJECT.to_owned(),
            expected: "NFT_MSG_NEWGEN",
            got: format!("message of type {kind:?}"),
        }),
    }
}
