//! Tables of the older iptables and ip6tables, as the kernel stores them
//! (`include/uapi/linux/netfilter_ipv4/ip_tables.h`, `…_ipv6/ip6_tables.h`).
//!
//! They belong to the network namespace of the calling thread. Requesting a table that does not
//! exist makes the kernel create it; only names from `/proc/net/ip_tables_names` change nothing.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::{Error, Result};

/// `XT_TABLE_MAXNAMELEN`.
const NAME_BYTES: usize = 32;
/// `IPT_SO_GET_INFO`, `IP6T_SO_GET_INFO`; `…_GET_ENTRIES`.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
/// `struct ipt_getinfo`: name, `valid_hooks`, `hook_entry` and `underflow` of five hooks,
/// `num_entries`, `size`; all `u32`s.
const INFO_WORDS: usize = 13;
/// `struct ipt_get_entries` before its entries: name, size, padding to 8 bytes.
const ENTRIES_HEAD: usize = 40;
/// More than any table has; limits the size accepted from the kernel.
const MOST_BYTES: usize = 64 << 20;

/// Rules of a table of iptables-legacy or ip6tables-legacy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// For each hook (`NF_INET_PRE_ROUTING` …), the offsets of the first and last rule of its
    /// chain; `None` if the table gets no packets there.
    pub hooks: [Option<(u32, u32)>; 5],
    /// A sequence of `struct ipt_entry` or `struct ip6t_entry`.
    pub entries: Vec<u8>,
}

/// Reads a table.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, `EAGAIN` if it was changed during the read.
pub fn table(ipv6: bool, name: &str) -> Result<Table> {
    let (family, level, program) = if ipv6 {
        (AddressFamily::Inet6, libc::IPPROTO_IPV6, "ip6tables")
    } else {
        (AddressFamily::Inet, libc::IPPROTO_IP, "iptables")
    };
    let failed =
        |operation, errno| Error::new(operation, format!("{program}-legacy table {name}"), errno);
    // The kernel would truncate the name and answer for another table.
    if name.len() >= NAME_BYTES {
        return Err(failed("getsockopt(IPT_SO_GET_INFO)", Errno::ENAMETOOLONG));
    }
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)
        .map_err(|e| failed("socket", e))?;
    let mut info = vec![0; NAME_BYTES + 4 * INFO_WORDS];
    info[..name.len()].copy_from_slice(name.as_bytes());
    get(&socket, level, GET_INFO, &mut info)
        .map_err(|e| failed("getsockopt(IPT_SO_GET_INFO)", e))?;
    let words: Vec<u32> = info[NAME_BYTES..]
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .collect();
    let size = words[INFO_WORDS - 1] as usize;
    // The kernel's answer sizes a buffer of this process.
    if size > MOST_BYTES {
        return Err(failed("getsockopt(IPT_SO_GET_INFO)", Errno::EOVERFLOW));
    }
    let mut entries = vec![0; ENTRIES_HEAD + size];
    entries[..name.len()].copy_from_slice(name.as_bytes());
    entries[NAME_BYTES..][..4].copy_from_slice(&(size as u32).to_ne_bytes());
    get(&socket, level, GET_ENTRIES, &mut entries)
        .map_err(|e| failed("getsockopt(IPT_SO_GET_ENTRIES)", e))?;
    entries.drain(..ENTRIES_HEAD);
    let hook = |number: usize| {
        (words[0] & 1 << number != 0).then(|| (words[1 + number], words[6 + number]))
    };
    Ok(Table { hooks: std::array::from_fn(hook), entries })
}

/// Calls `getsockopt` for all of `bytes`, which the kernel also reads.
fn get(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    bytes: &mut [u8],
) -> std::result::Result<(), Errno> {
    let mut length = bytes.len() as libc::socklen_t;
    // SAFETY: `bytes` is writable for the passed `length`, and the descriptor is open while
    // `socket` is borrowed.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(answer).map(drop)
}
