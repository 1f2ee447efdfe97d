//! Confinement of `measure serve` and `watch --serve`, which untrusted parties can reach.

use nix::libc;
use sys::capability::Capability;
use sys::seccomp::{Argument, Filter, Otherwise};

use super::Rights;

/// The largest receive buffer that a load requests by default, in bytes.
const RECEIVE_BUFFER: u64 = 16 << 20;
/// The largest receive buffer that needs no capability.
const MOST_RECEIVED: &str = "/proc/sys/net/core/rmem_max";

/// Returns the capabilities that improve measurements. Sessions open their samplers themselves, so
/// that an idle server costs nothing. The exact CPU clock and drop reasons need BPF and PERFMON
/// each time; receive buffers beyond `net.core.rmem_max` need NET_ADMIN.
fn needed(loads_programs: bool, most_received: Option<u64>) -> Vec<Capability> {
    let mut needed = Vec::new();
    if loads_programs {
        needed.extend([Capability::Bpf, Capability::Perfmon]);
    }
    // If the limit is unknown, assume that it is too small.
    if most_received.is_none_or(|most| most < RECEIVE_BUFFER) {
        needed.push(Capability::NetAdmin);
    }
    needed
}

/// Executes both steps for the process of `watch --serve` that faces the network. It keeps no right at
/// all. Returns a description of the confinement in force.
pub fn give_up_for_front() -> sys::Result<String> {
    confine(&Rights::none()?)?;
    Ok(super::in_force())
}

/// Executes the first step of `watch --serve` for the process that traces, before its threads start.
/// It must keep the rights to enter new namespaces and to read `/proc` of any process.
pub fn give_up_but_watching() -> sys::Result<Rights> {
    use Capability::{Bpf, NetAdmin, Perfmon, SysAdmin, SysPtrace};
    Rights::only(&[Bpf, Perfmon, NetAdmin, SysAdmin, SysPtrace], None)
}

/// Executes both steps for the process of `measure serve` that switches settings. It must keep the
/// rights to enter its own namespace and to change devices.
pub fn give_up_but_settings() -> sys::Result<()> {
    use Capability::{NetAdmin, SysAdmin, SysPtrace};
    let rights = Rights::only(&[NetAdmin, SysAdmin, SysPtrace], None)?;
    // An unconnected Unix socket reads the cookie of the namespace; ethtool's requests need an
    // IPv4 socket.
    confine_to(&rights, &[libc::AF_UNIX, libc::AF_INET, libc::AF_NETLINK])
}

/// Name of the distribution, for the results (os-release(5)).
const FILES: &[&str] = &["/etc/os-release", "/usr/lib/os-release"];

/// Executes the first step, before sessions start threads. `loads_programs`: sessions load BPF
/// programs.
pub fn give_up(loads_programs: bool) -> sys::Result<Rights> {
    let most = std::fs::read_to_string(MOST_RECEIVED).ok();
    let most = most.and_then(|text| text.trim().parse().ok());
    Rights::of_another(&needed(loads_programs, most), &["/proc", "/sys"], FILES)
}

/// System calls that no measurement needs, and that kill the process: programs, other processes,
/// mounts, keys, io_uring. The rest stays allowed: sessions start threads and open sockets.
const FATAL: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_io_uring_setup,
    libc::SYS_userfaultfd,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
];

/// Executes the second step.
pub fn confine(rights: &Rights) -> sys::Result<()> {
    // Measurements need TCP and UDP, device queries need netlink.
    confine_to(rights, &[libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK])
}

/// The same, with sockets of these address families.
fn confine_to(rights: &Rights, families: &[i32]) -> sys::Result<()> {
    let mut filter = Filter::default();
    filter.kill(FATAL);
    let others: Vec<Argument> =
        families.iter().map(|family| Argument::is_not(0, (*family).into())).collect();
    filter.refuse_if(libc::SYS_socket, &others);
    let audit = [libc::AF_NETLINK, libc::NETLINK_AUDIT].map(i64::from);
    filter.refuse_if(libc::SYS_socket, &[Argument::is(0, audit[0]), Argument::is(2, audit[1])]);
    for request in [libc::TIOCSTI, libc::TIOCLINUX] {
        filter.refuse_if(libc::SYS_ioctl, &[Argument::is(1, request as i64)]);
    }
    for option in [libc::PR_SET_DUMPABLE, libc::PR_SET_PTRACER] {
        filter.refuse_if(libc::SYS_prctl, &[Argument::is(0, option.into())]);
    }
    // F_SETOWN and F_SETOWN_EX of `linux/fcntl.h` could send signals to other processes.
    for command in [8, 15] {
        filter.refuse_if(libc::SYS_fcntl, &[Argument::is(1, command)]);
    }
    filter.apply(Otherwise::Allow)?;
    rights.log("no system calls for processes, mounts and privileges");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_session_uses_is_kept() {
        use Capability::{Bpf, NetAdmin, Perfmon};
        const ENOUGH: Option<u64> = Some(16 << 20);
        assert_eq!(needed(true, Some(212_992)), [Bpf, Perfmon, NetAdmin]);
        assert_eq!(needed(true, ENOUGH), [Bpf, Perfmon]);
        assert_eq!(needed(false, Some((16 << 20) - 1)), [NetAdmin]);
        assert_eq!(needed(false, None), [NetAdmin]);
        assert_eq!(needed(false, ENOUGH), []);
    }
}
