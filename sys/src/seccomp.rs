//! System calls given up for good (seccomp(2)), by a list of those that stay.
//!
//! Whoever takes over a process that believes a packet it should not can then do no
//! more than the list allows. A call that is not on it kills the process: it means
//! that something is not as was thought.
//!
//! Source: `include/uapi/linux/seccomp.h`, `include/uapi/linux/audit.h`.

use nix::errno::Errno;

use crate::{Error, Result};

/// A call that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// Its number, `SYS_*`.
    pub call: libc::c_long,
    /// Which bits of the lower half of which argument must have which value;
    /// `None`: whatever the arguments are.
    pub only: Option<Only>,
}

/// A condition on an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Only {
    /// Which argument, from 0.
    pub argument: u32,
    /// These bits of its lower 32.
    pub mask: u32,
    /// Must be these.
    pub value: u32,
}

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xc000_00b7;

// struct seccomp_data: nr, arch, instruction_pointer, args[6].
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Where an argument's lower half is.
const LOW: u32 = if cfg!(target_endian = "big") { 4 } else { 0 };

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Goes on if equal, else over `otherwise` instructions.
fn unless(k: u32, otherwise: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: 0, jf: otherwise, k }
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn answer(action: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, action)
}

fn program(allowed: &[Allowed]) -> Vec<libc::sock_filter> {
    // Another architecture's calls have other numbers.
    let mut program = vec![
        load(ARCHITECTURE),
        unless(AUDIT_ARCH, 1),
        statement(libc::BPF_JMP | libc::BPF_JA, 1),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
    ];
    for Allowed { call, only } in allowed {
        match only {
            None => program.extend([unless(*call as u32, 1), answer(libc::SECCOMP_RET_ALLOW)]),
            Some(Only { argument, mask, value }) => program.extend([
                unless(*call as u32, 5),
                load(ARGUMENTS + 8 * argument + LOW),
                statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, *mask),
                unless(*value, 1),
                answer(libc::SECCOMP_RET_ALLOW),
                load(NUMBER),
            ]),
        }
    }
    program.push(answer(libc::SECCOMP_RET_KILL_PROCESS));
    program
}

/// Gives up every other call, for all threads of the process.
///
/// # Errors
/// `EACCES` unless no thread can gain rights ([`crate::capability::drop_all`]),
/// `EINVAL` without seccomp, `ESRCH` when a thread has a filter of its own.
pub fn confine(allowed: &[Allowed]) -> Result<()> {
    let mut code = program(allowed);
    let failed = |errno| Error::new("seccomp(SECCOMP_SET_MODE_FILTER)", "all threads", errno);
    let len = u16::try_from(code.len()).map_err(|_| failed(Errno::EINVAL))?;
    let filter = libc::sock_fprog { len, filter: code.as_mut_ptr() };
    // SAFETY: seccomp reads one sock_fprog and the instructions it points to; both
    // are alive, initialised and of the length given, and the kernel copies them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    match done {
        0 => Ok(()),
        // The number of a thread that could not take it.
        1.. => Err(failed(Errno::ESRCH)),
        _ => Err(failed(Errno::last())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a filter decides, by a machine for these few instructions.
    fn decide(program: &[libc::sock_filter], architecture: u32, call: u32, argument: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let i = program[at];
            at += 1;
            let code = u32::from(i.code);
            if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                accumulator = match i.k {
                    NUMBER => call,
                    ARCHITECTURE => architecture,
                    _ => argument,
                };
            } else if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K {
                at += usize::from(if accumulator == i.k { i.jt } else { i.jf });
            } else if code == libc::BPF_JMP | libc::BPF_JA {
                at += i.k as usize;
            } else if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K {
                accumulator &= i.k;
            } else {
                assert_eq!(code, libc::BPF_RET | libc::BPF_K);
                return i.k;
            }
        }
    }

    #[test]
    fn what_is_listed_stays_and_nothing_else() {
        let program = program(&[
            Allowed { call: 1, only: None },
            Allowed { call: 2, only: Some(Only { argument: 1, mask: 3, value: 2 }) },
            Allowed { call: 3, only: None },
        ]);
        let allowed = |call, argument| {
            decide(&program, AUDIT_ARCH, call, argument) == libc::SECCOMP_RET_ALLOW
        };
        assert!(allowed(1, 0) && allowed(3, 7) && !allowed(4, 0) && !allowed(0, 0));
        assert!(allowed(2, 2) && allowed(2, 6) && !allowed(2, 3) && !allowed(2, 0));
        assert_eq!(decide(&program, 3, 1, 0), libc::SECCOMP_RET_KILL_PROCESS);
    }
}
