//! Confinement of `vtep` and `tapbridge` to forwarding packets.

use std::ops::RangeInclusive;
use std::os::fd::RawFd;

use nix::libc;
use sys::seccomp::{Argument, Filter, Otherwise};

use super::Rights;

/// Sockets that need more system calls than read and write.
#[derive(Debug, Clone, Default)]
pub struct Sockets {
    /// First and last descriptor of the UDP sockets. `sendmmsg` can pass addresses and descriptors,
    /// so it is allowed on these only, and they cannot be closed, so that no other socket can get
    /// one of these numbers.
    pub datagrams: Option<RangeInclusive<RawFd>>,
    /// A UDP socket that is reconnected to look up a path.
    pub probe: Option<RawFd>,
    /// Guests connect to vhost-user sockets and pass descriptors of their memory and events.
    pub guests: bool,
}

/// `F_GET_SEALS` of `linux/fcntl.h`: checks whether a guest can shrink its memory.
const F_GET_SEALS: i64 = 1034;

/// Allowed system calls: for packets, waiting, time, status requests and metrics.
const CALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_epoll_pwait,
    // The rings exist and are restricted by now; io_uring_setup is not allowed.
    libc::SYS_io_uring_enter,
    libc::SYS_ppoll,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_getuid,
    libc::SYS_rt_sigaction,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    // Variants that older libraries use. Calls with paths are below.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// System calls that fail with an error instead of killing the process: libraries try to open files
/// or sockets, and work without them.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_unlinkat,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_prlimit64,
    libc::SYS_uname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Allowed socket options: client timeouts, and multicast groups, which follow the endpoint's
/// address to another link (`linux/in.h`, `linux/in6.h`).
const OPTIONS: &[(libc::c_int, libc::c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_IF),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP),
    (libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP),
    (libc::IPPROTO_IP, libc::IP_DROP_MEMBERSHIP),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
    (libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP),
    (libc::IPPROTO_IPV6, libc::IPV6_DROP_MEMBERSHIP),
];

/// `BPF_MAP_LOOKUP_ELEM` and `BPF_LINK_DETACH` of `linux/bpf.h`.
const BPF_MAP_LOOKUP_ELEM: i64 = 1;
const BPF_LINK_DETACH: i64 = 34;

/// Confines all threads. Afterwards they cannot start programs, open files, create sockets or make
/// memory executable.
pub fn confine(rights: &Rights, sockets: &Sockets) -> sys::Result<()> {
    filter(sockets).apply(Otherwise::Kill)?;
    rights.log("only system calls for forwarding");
    Ok(())
}

fn filter(sockets: &Sockets) -> Filter {
    let mut filter = Filter::default();
    filter.allow_basics().allow(CALLS).refuse(REFUSED);
    // New threads set their names.
    filter.allow_if(libc::SYS_prctl, &[Argument::is(0, libc::PR_SET_NAME.into())]);
    // Read the counters of the bpf engine, and detach its programs at exit.
    filter.allow_if(libc::SYS_bpf, &[Argument::is(0, BPF_MAP_LOOKUP_ELEM)]);
    filter.allow_if(libc::SYS_bpf, &[Argument::is(0, BPF_LINK_DETACH)]);
    // Blocking mode of connections; the hardware address of a TAP, which its owner may change;
    // the terminal check of glibc and of musl.
    let requests = [
        libc::FIONBIO as i64,
        libc::SIOCGIFHWADDR as i64,
        libc::TCGETS as i64,
        libc::TIOCGWINSZ as i64,
    ];
    for request in requests {
        filter.allow_if(libc::SYS_ioctl, &[Argument::is(1, request)]);
    }
    for command in [libc::F_GETFD, libc::F_GETFL, libc::F_SETFL] {
        filter.allow_if(libc::SYS_fcntl, &[Argument::is(1, command.into())]);
    }
    // Allow sendto only without an address: to the connected peer or the kernel.
    filter.allow_if(libc::SYS_sendto, &[Argument::null(4)]);
    for (level, name) in OPTIONS {
        let option = [Argument::is(1, (*level).into()), Argument::is(2, (*name).into())];
        filter.allow_if(libc::SYS_setsockopt, &option);
    }
    if let Some(datagrams) = &sockets.datagrams {
        let [first, last] = [*datagrams.start(), *datagrams.end()].map(i64::from);
        let within = [Argument::at_least(0, first), Argument::at_most(0, last)];
        filter.allow_if(libc::SYS_sendmmsg, &within);
        filter.allow_if(libc::SYS_recvmmsg, &within);
        filter.refuse_if(libc::SYS_close, &within);
    }
    if sockets.guests {
        // recvmsg takes descriptors from guests. sendmsg stays forbidden: none can be sent.
        // fstatfs: whether the memory consists of huge pages. pread64: the limit of this process's
        // memory, which guests could exhaust.
        let calls = [libc::SYS_recvmsg, libc::SYS_epoll_ctl, libc::SYS_fstatfs, libc::SYS_pread64];
        filter.allow(&calls);
        filter.allow_if(libc::SYS_fcntl, &[Argument::is(1, F_GET_SEALS)]);
    }
    match sockets.probe {
        Some(probe) => {
            let probe = [Argument::is(0, probe.into())];
            // Refuse close, so that no other socket can get this number.
            filter.allow_if(libc::SYS_connect, &probe).refuse_if(libc::SYS_close, &probe);
        }
        None => drop(filter.refuse(&[libc::SYS_connect])),
    }
    filter
}
