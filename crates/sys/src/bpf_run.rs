//! Runs a BPF program of type `BPF_PROG_TYPE_SYSCALL`.
//!
//! libbpf-rs runs programs only by a mutable reference to the whole object.
//!
//! Source: `bpf_prog_test_run_syscall` (`net/bpf/test_run.c`), `test` of `union bpf_attr`
//! (`include/uapi/linux/bpf.h`).

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

use crate::{Error, Result};

/// `enum bpf_cmd`.
const BPF_PROG_TEST_RUN: libc::c_int = 10;

/// `test` of `union bpf_attr`.
#[repr(C)]
#[derive(Default)]
struct Run {
    program: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

/// Runs the program in the calling thread, with `context` as its context, which it may change.
/// Returns the program's result.
///
/// # Errors
/// `EINVAL` for a program of another type, or a context of another size than it accesses.
pub fn run(program: BorrowedFd<'_>, context: &mut [u8]) -> Result<u32> {
    let mut attributes = Run {
        program: program.as_raw_fd().cast_unsigned(),
        ctx_size_in: u32::try_from(context.len()).unwrap_or(u32::MAX),
        ctx_in: context.as_mut_ptr() as u64,
        ..Run::default()
    };
    // SAFETY: the kernel accesses no more of the attributes than the size passed. It reads and
    // writes no more than `ctx_size_in` bytes at `ctx_in`, which are `context`, and keeps no
    // pointer.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_TEST_RUN,
            std::ptr::from_mut(&mut attributes),
            size_of::<Run>() as libc::c_uint,
        )
    };
    Errno::result(answer)
        .map_err(|errno| Error::new("bpf(BPF_PROG_TEST_RUN)", "program".to_owned(), errno))?;
    Ok(attributes.retval)
}
