//! Confinement of `accel run` to network state, BPF maps and BPF links.

use nix::libc;
use sys::capability::Capability;
use sys::seccomp::{Argument, Filter, Otherwise};

use super::Rights;

/// Remaining capabilities: change maps and attach programs (BPF, NET_ADMIN), run programs that
/// read kernel memory (PERFMON), run the heartbeat thread in real time (SYS_NICE), enter the
/// served namespaces and list BPF links (SYS_ADMIN).
const CAPABILITIES: &[Capability] = &[
    Capability::NetAdmin,
    Capability::Bpf,
    Capability::Perfmon,
    Capability::SysNice,
    Capability::SysAdmin,
];
/// Remaining capabilities of the process that searches for namespaces: inspect other processes
/// (SYS_PTRACE), enter the namespaces found (SYS_ADMIN) and assign them IDs (NET_ADMIN). It needs
/// none for root's files in `/proc`, because it runs as root.
const LOOKING: &[Capability] = &[Capability::NetAdmin, Capability::SysAdmin, Capability::SysPtrace];

/// Remaining capability of the process that replaces conntrack's entries at the end.
const RENEWING: &[Capability] = &[Capability::NetAdmin];

/// Files with kernel state.
const READING: &[&str] = &["/proc", "/sys"];

/// Executes the first step, before the fast path starts.
pub fn give_up() -> sys::Result<Rights> {
    Rights::only(CAPABILITIES, Some(READING))
}

/// Executes both steps for the process that searches for namespaces. It cannot use Landlock, which
/// would hide other processes. It can read files, but accepts no request that names one.
pub fn give_up_but_looking() -> sys::Result<()> {
    Rights::only(LOOKING, None)?;
    let mut filter = reading();
    filter.allow(&[libc::SYS_sendmsg]);
    filter.apply(Otherwise::Refuse)
}

/// Executes both steps for the process that replaces conntrack's entries if this one is killed. It
/// needs netlink only.
pub fn give_up_but_renewing() -> sys::Result<()> {
    Rights::only(RENEWING, Some(&[]))?;
    let mut filter = Filter::default();
    filter.allow_basics().allow(NETLINK_CALLS).kill(FATAL);
    allow_netlink(&mut filter, &[libc::NETLINK_NETFILTER]);
    filter.apply(Otherwise::Refuse)
}

/// System calls for netlink and for waiting on a socket.
const NETLINK_CALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_ppoll,
    libc::SYS_close,
    libc::SYS_bind,
    libc::SYS_getsockname,
    libc::SYS_setsockopt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// System calls that kill the process: only an attacker in control of it would use them.
const FATAL: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
];

/// Allowed system calls: for threads, netlink, reading files.
const CALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_ppoll,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_dup,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_bind,
    // For netlink only: the filter allows no Unix or TCP sockets.
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_uname,
    libc::SYS_rt_sigaction,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_sched_getaffinity,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
];

/// Allowed bpf(2) commands (`enum bpf_cmd` of `linux/bpf.h`): maps, links, and inspecting programs
/// that others have attached. Loading is not among them: programs for future sandboxes are loaded
/// before.
const BPF: &[i64] = &[
    1,  // MAP_LOOKUP_ELEM
    2,  // MAP_UPDATE_ELEM
    3,  // MAP_DELETE_ELEM
    4,  // MAP_GET_NEXT_KEY
    10, // PROG_TEST_RUN
    11, // PROG_GET_NEXT_ID
    12, // MAP_GET_NEXT_ID
    13, // PROG_GET_FD_BY_ID
    15, // OBJ_GET_INFO_BY_FD
    16, // PROG_QUERY
    24, // MAP_LOOKUP_BATCH
    25, // MAP_LOOKUP_AND_DELETE_BATCH
    26, // MAP_UPDATE_BATCH
    27, // MAP_DELETE_BATCH
    28, // LINK_CREATE
    29, // LINK_UPDATE
    30, // LINK_GET_FD_BY_ID
    31, // LINK_GET_NEXT_ID
    33, // ITER_CREATE
    34, // LINK_DETACH
];

/// Allowed netlink protocols. Sockets of the internet families are also allowed, for ioctls on
/// devices and the options of legacy iptables.
const NETLINK: &[libc::c_int] = &[
    libc::NETLINK_ROUTE,
    libc::NETLINK_SOCK_DIAG,
    libc::NETLINK_XFRM,
    libc::NETLINK_NETFILTER,
    libc::NETLINK_GENERIC,
];

/// Allowed ioctls: device queries (`linux/sockios.h`), non-blocking sockets, and the terminal check
/// of glibc and of musl. The types of libc's constants differ between C libraries.
const REQUESTS: &[i64] = &[
    libc::FIONBIO as i64,
    libc::FIOCLEX as i64,
    libc::TCGETS as i64,
    libc::TIOCGWINSZ as i64,
    SIOCETHTOOL,
    libc::SIOCGIFINDEX as i64,
    libc::SIOCGIFHWADDR as i64,
];
/// `SIOCETHTOOL` of `linux/sockios.h`.
const SIOCETHTOOL: i64 = 0x8946;
/// `NS_GET_USERNS` to `NS_GET_OWNER_UID` of `linux/nsfs.h`: queries about a namespace.
const NAMESPACES: std::ops::RangeInclusive<i64> = 0xb701..=0xb704;

/// Executes the second step for all threads. Refuses every other system call.
pub fn confine(rights: &Rights) -> sys::Result<()> {
    let mut filter = reading();
    for command in BPF {
        filter.allow_if(libc::SYS_bpf, &[Argument::is(0, *command)]);
    }
    // The heartbeat thread switches to real-time scheduling.
    filter.allow_if(libc::SYS_sched_getscheduler, &[Argument::is(0, 0)]);
    filter.allow_if(libc::SYS_sched_setscheduler, &[Argument::is(0, 0)]);
    filter.apply(Otherwise::Refuse)?;
    rights.log("only system calls for the fast path");
    Ok(())
}

/// Returns a filter that allows reading network state, also in other namespaces.
fn reading() -> Filter {
    let mut filter = Filter::default();
    filter.allow_basics().allow(CALLS).kill(FATAL);
    let writing = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    filter.allow_if(libc::SYS_openat, &[Argument::has(2, writing.into(), 0)]);
    // musl's open.
    #[cfg(target_arch = "x86_64")]
    filter.allow_if(libc::SYS_open, &[Argument::has(1, writing.into(), 0)]);
    for family in [libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
            let socket = [Argument::is(0, family.into()), Argument::has(1, 0xf, kind.into())];
            filter.allow_if(libc::SYS_socket, &socket);
        }
    }
    allow_netlink(&mut filter, NETLINK);
    for request in REQUESTS.iter().copied().chain(NAMESPACES) {
        filter.allow_if(libc::SYS_ioctl, &[Argument::is(1, request)]);
    }
    for command in [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, DUPLICATE] {
        filter.allow_if(libc::SYS_fcntl, &[Argument::is(1, command.into())]);
    }
    filter.allow_if(libc::SYS_setns, &[Argument::is(1, libc::CLONE_NEWNET.into())]);
    filter.allow_if(libc::SYS_prctl, &[Argument::is(0, libc::PR_SET_NAME.into())]);
    // Allow new threads, but no new processes.
    let thread = i64::from(libc::CLONE_THREAD);
    filter.allow_if(libc::SYS_clone, &[Argument::has(0, thread, thread)]);
    // A filter cannot see the flags of clone3. With ENOSYS, glibc falls back to clone.
    filter.missing(&[libc::SYS_clone3]);
    filter
}

fn allow_netlink(filter: &mut Filter, protocols: &[libc::c_int]) {
    for protocol in protocols {
        let socket =
            [Argument::is(0, libc::AF_NETLINK.into()), Argument::is(2, (*protocol).into())];
        filter.allow_if(libc::SYS_socket, &socket);
    }
}

const DUPLICATE: libc::c_int = libc::F_DUPFD_CLOEXEC;
