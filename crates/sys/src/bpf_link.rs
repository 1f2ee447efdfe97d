//! BPF links of the whole machine by ID, and the programs that select sockets.
//!
//! libbpf-rs lists links too, but reports an empty list if the kernel refuses.
//!
//! Source: `bpf_obj_get_next_id`, `bpf_link_get_fd_by_id` (`kernel/bpf/syscall.c`),
//! `netns_bpf_prog_query` (`kernel/bpf/net_namespace.c`), `union bpf_attr`
//! (`include/uapi/linux/bpf.h`).

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use crate::{Error, Result};

/// `enum bpf_cmd`.
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_LINK_GET_FD_BY_ID: libc::c_int = 30;
const BPF_LINK_GET_NEXT_ID: libc::c_int = 31;
/// `enum bpf_attach_type`.
const BPF_SK_LOOKUP: u32 = 36;

/// The start of `union bpf_attr`, as far as the commands by ID need it.
#[repr(C)]
#[derive(Default)]
struct Number {
    id: u32,
    next: u32,
    flags: u32,
}

/// `query` of `union bpf_attr`, up to the last field that is written.
#[repr(C)]
#[derive(Default)]
struct ProgramQuery {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    count: u32,
    padding: u32,
}

fn bpf<T>(
    command: libc::c_int,
    attributes: &mut T,
    operation: &'static str,
    object: String,
) -> Result<libc::c_int> {
    // SAFETY: the kernel accesses no more of the attributes than the size passed and keeps no
    // pointer to them. The attributes in this module contain no pointers.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<T>() as libc::c_uint,
        )
    };
    let answer = Errno::result(answer).map_err(|errno| Error::new(operation, object, errno))?;
    Ok(answer as libc::c_int)
}

/// Returns the ID of the next link after `after`; `None` if there is none.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`.
pub fn next(after: u32) -> Result<Option<u32>> {
    let mut number = Number { id: after, ..Number::default() };
    let object = format!("link behind {after}");
    match bpf(BPF_LINK_GET_NEXT_ID, &mut number, "bpf(BPF_LINK_GET_NEXT_ID)", object) {
        Ok(_) => Ok(Some(number.next)),
        // ENOENT ends the list.
        Err(error) if error.errno == Errno::ENOENT => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens a link; `None` if it no longer exists.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`.
pub fn open(id: u32) -> Result<Option<OwnedFd>> {
    let mut number = Number { id, ..Number::default() };
    let object = format!("link {id}");
    match bpf(BPF_LINK_GET_FD_BY_ID, &mut number, "bpf(BPF_LINK_GET_FD_BY_ID)", object) {
        // SAFETY: the kernel has just installed the descriptor for this call; no other code knows
        // its number.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        // EAGAIN: the link is being created and has no effect yet.
        Err(error) if [Errno::ENOENT, Errno::EAGAIN].contains(&error.errno) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the number of programs that select sockets for packets of a network namespace
/// (`sk_lookup`).
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`, `EINVAL` before Linux 5.9.
pub fn socket_lookups(netns: BorrowedFd<'_>) -> Result<u32> {
    let mut query = ProgramQuery {
        target: netns.as_raw_fd().cast_unsigned(),
        attach_type: BPF_SK_LOOKUP,
        ..ProgramQuery::default()
    };
    bpf(BPF_PROG_QUERY, &mut query, "bpf(BPF_PROG_QUERY)", "sk_lookup programs".to_owned())?;
    Ok(query.count)
}
