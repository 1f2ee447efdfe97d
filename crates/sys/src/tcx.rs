//! BPF programs at the tcx hooks of a device, attached by links.
//!
//! A tcx link (Linux 6.6) disappears with its descriptors, so nothing remains if the process is
//! killed, unlike a clsact filter. libbpf-rs has no function for it.
//!
//! Source: `bpf_tcx_link_attach` (`kernel/bpf/tcx.c`), `link_detach` (`kernel/bpf/syscall.c`),
//! `union bpf_attr` (`include/uapi/linux/bpf.h`).

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use crate::{Error, Result};

/// `enum bpf_cmd`.
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_LINK_DETACH: libc::c_int = 34;

/// A hook of a device: `enum bpf_attach_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Hook {
    /// Packets received by the device.
    Ingress = 46,
    /// Packets to be sent by the device.
    Egress = 47,
}

/// `link_create` of `union bpf_attr`, as far as tcx needs it.
#[repr(C)]
struct LinkCreate {
    program: u32,
    ifindex: u32,
    attach_type: u32,
    flags: u32,
    relative: u32,
    padding: u32,
    expected_revision: u64,
}

const _: () = assert!(size_of::<LinkCreate>() == 32);

/// `query` of `union bpf_attr`, as far as counting needs it.
#[repr(C)]
#[derive(Default)]
struct ProgramQuery {
    ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    count: u32,
    padding: u32,
    program_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

const _: () = assert!(size_of::<ProgramQuery>() == 64);

/// Returns the number of programs at a hook of a device in the namespace of the calling thread.
///
/// # Errors
/// `EINVAL` before Linux 6.6, `EPERM` without `CAP_NET_ADMIN`, `ENODEV`.
pub fn count(ifindex: u32, hook: Hook) -> Result<u32> {
    query(ifindex, hook, &mut [])
}

/// Maximum number of programs at a hook: `BPF_MPROG_MAX` of `include/linux/bpf_mprog.h`.
const MOST: usize = 64;

/// Returns the IDs of the programs at a hook of a device in the namespace of the calling thread.
pub fn programs(ifindex: u32, hook: Hook) -> Result<Vec<u32>> {
    let mut ids = [0u32; MOST];
    let count = query(ifindex, hook, &mut ids)?;
    Ok(ids.into_iter().take(count as usize).collect())
}

/// Writes as many IDs of the programs at a hook to `ids` as fit, and returns the number of
/// programs; with an empty `ids` it only counts.
fn query(ifindex: u32, hook: Hook, ids: &mut [u32]) -> Result<u32> {
    // Null instead of the dangling pointer of an empty slice.
    let room = if ids.is_empty() { 0 } else { ids.as_mut_ptr().expose_provenance() as u64 };
    let mut query = ProgramQuery {
        ifindex,
        attach_type: hook as u32,
        program_ids: room,
        count: u32::try_from(ids.len()).unwrap_or(u32::MAX),
        ..ProgramQuery::default()
    };
    // SAFETY: the kernel writes at most `count` IDs to `program_ids`, which points to a slice of
    // that length that outlives the call, or is null. Everything else is written inside the
    // attributes, whose size is passed.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_QUERY,
            &raw mut query,
            size_of::<ProgramQuery>() as libc::c_uint,
        )
    };
    match Errno::result(answer) {
        Ok(_) => Ok(query.count),
        Err(errno) => Err(Error::new(
            "bpf(BPF_PROG_QUERY)",
            format!("tcx {hook:?} of device {ifindex}"),
            errno,
        )),
    }
}

/// A program at a hook of a device. Dropping it detaches the program immediately. If the process
/// ends in any other way, the kernel detaches it with the last descriptor of the link.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Moves the descriptor to a high number, so that it is released before the others when the
    /// process ends for any reason. `close_files` defers descriptors from the lowest number up, and
    /// `task_work_run` runs the last deferred first (`fs/file.c`, `kernel/task_work.c`).
    ///
    /// # Errors
    /// If there are no more descriptors (`RLIMIT_NOFILE`). The program is then detached.
    pub fn released_early(mut self) -> Result<Link> {
        const HIGH: libc::c_int = 512;
        // SAFETY: fcntl reads no memory for this command; the descriptor is open.
        let fd = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) };
        let fd = Errno::result(fd)
            .map_err(|errno| Error::new("fcntl(F_DUPFD_CLOEXEC)", "tcx link".to_owned(), errno))?;
        // SAFETY: the kernel has just installed the descriptor for this call; no other code knows
        // its number.
        self.0 = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(self)
    }
}

impl Drop for Link {
    /// Closing the descriptor is not sufficient: a process that lists the links of the machine
    /// holds a descriptor, and so the link, for a moment.
    fn drop(&mut self) {
        let link = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: bpf reads no more of the attributes than the size passed; the descriptor is open.
        // A refusal has no effect, because the descriptor is closed next.
        unsafe {
            libc::syscall(
                libc::SYS_bpf,
                BPF_LINK_DETACH,
                &raw const link,
                size_of::<u32>() as libc::c_uint,
            );
        }
    }
}

/// Attaches a program to a device in the namespace of the calling thread, after the existing
/// programs.
///
/// # Errors
/// `EINVAL` before Linux 6.6, `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, `ENODEV`.
pub fn attach(program: BorrowedFd<'_>, ifindex: u32, hook: Hook) -> Result<Link> {
    let attributes = LinkCreate {
        program: program.as_raw_fd().cast_unsigned(),
        ifindex,
        attach_type: hook as u32,
        flags: 0,
        relative: 0,
        padding: 0,
        expected_revision: 0,
    };
    // SAFETY: bpf reads no more of the attributes than the size passed; they are initialised and
    // outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_LINK_CREATE,
            &raw const attributes,
            size_of::<LinkCreate>() as libc::c_uint,
        )
    };
    let fd = Errno::result(fd).map_err(|errno| {
        Error::new("bpf(BPF_LINK_CREATE)", format!("tcx {hook:?} of device {ifindex}"), errno)
    })?;
    // SAFETY: the kernel has just installed the descriptor for this call; no other code knows its
    // number. It is close-on-exec (bpf_link_prime).
    Ok(Link(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }))
}
