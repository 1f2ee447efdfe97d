//! What a verb that forwards packets may still ask of the kernel once it runs.

use nix::libc;
use sys::seccomp::{Allowed, Only, confine};

/// Packets, waiting, memory, time, and the end.
const CALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_epoll_pwait,
    // The rings are there and restricted by now; none can be made.
    libc::SYS_io_uring_enter,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // The configuration read again, the namespace's tables, BPF maps; sockets of
    // netlink, of the service manager, of who asks for the status.
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_unlinkat,
    libc::SYS_readlinkat,
];

/// Those of an older age, which newer architectures lack.
#[cfg(target_arch = "x86_64")]
const OLDER: &[libc::c_long] =
    &[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_unlink, libc::SYS_readlink];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[libc::c_long] = &[];

/// Gives up everything else, for every thread. No program can be started, no file
/// written, nothing made executable after this.
///
/// # Errors
/// When the kernel refuses.
pub fn confine_forwarding() -> sys::Result<()> {
    let any = |call: &libc::c_long| Allowed { call: *call, only: None };
    let only = |call, argument, mask: libc::c_int, value: u64| {
        let only = Only { argument, mask: mask.cast_unsigned(), value: value as u32 };
        Allowed { call, only: Some(only) }
    };
    let mut allowed: Vec<Allowed> = CALLS.iter().chain(OLDER).map(any).collect();
    let writing = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    allowed.extend([
        only(libc::SYS_openat, 2, writing, 0),
        only(libc::SYS_mmap, 2, libc::PROT_EXEC, 0),
        only(libc::SYS_mprotect, 2, libc::PROT_EXEC, 0),
        // The bpf engine's counters: BPF_MAP_LOOKUP_ELEM.
        only(libc::SYS_bpf, 0, -1, 1),
        // Threads that were just started name themselves.
        only(libc::SYS_prctl, 0, -1, libc::PR_SET_NAME as u64),
        // Hardware addresses of TAPs; connections that are waited for.
        only(libc::SYS_ioctl, 1, -1, libc::SIOCGIFHWADDR),
        only(libc::SYS_ioctl, 1, -1, libc::FIONBIO),
    ]);
    confine(&allowed)
}
