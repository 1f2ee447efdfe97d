//! Loads the BPF programs and attaches them by tcx links.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Enum, Func};
use libbpf_rs::{
    ErrorKind, Link, MapCore, MapHandle, NF_INET_PRE_ROUTING, NFPROTO_IPV4, NFPROTO_IPV6,
    NetfilterOpts, Object, ObjectBuilder, OpenObject, PrintLevel, Program, ProgramType,
};
use nix::time::{ClockId, clock_getres};
use sys::tcx::{self, Hook};
use zerocopy::IntoBytes;

use super::abi::{self, HOOK_LISTS, RawConstants, RawHookLists};
use crate::lock::lock;
use crate::{Error, Result};

pub(super) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fastpath.bpf.o"));

/// Role of a program, which determines its hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    /// At a tenant's device: encapsulates.
    Encap,
    /// At an underlay NIC: decapsulates.
    Decap,
    /// At the NICs' end of the veth pair to a sandbox.
    Outward,
    /// At the sandbox's end of that pair.
    Inward,
    /// At the egress of a tenant's device, or of a VXLAN device that is a bridge port: only records
    /// packets on the slow path.
    Leave,
    /// At the egress of a routed VXLAN device: adds outer headers.
    Depart,
}

impl Role {
    /// Returns the tcx hook of the program.
    pub(crate) fn hook(self) -> Hook {
        match self {
            Role::Encap | Role::Decap | Role::Outward | Role::Inward => Hook::Ingress,
            Role::Leave | Role::Depart => Hook::Egress,
        }
    }

    fn hook_name(self) -> &'static str {
        match self.hook() {
            Hook::Ingress => "ingress",
            Hook::Egress => "egress",
        }
    }
}

/// The loaded programs of a namespace.
pub(crate) struct Programs {
    pub(super) object: Object,
    /// The program of this role that all sandboxes share. `None`: of the NICs' namespace.
    pub(super) inward: Option<Shared>,
    /// The kernel runs BPF programs at netfilter hooks, so the guard is loaded.
    pub(super) has_guard: bool,
    pub(super) decap: DecapGso,
}

/// A program that is loaded once for several namespaces.
pub(super) struct Shared {
    pub(super) fd: OwnedFd,
    /// The kernel's id.
    pub(super) id: u32,
}

pub(super) fn failed(operation: &'static str, object: impl Into<String>, problem: String) -> Error {
    Error::Bpf { operation, object: object.into(), problem }
}

/// The program before conntrack.
pub(super) const GUARD: &str = "overlane_guard";
/// The program that reads which functions are at netfilter's hooks.
const LISTS: &str = "hook_lists";
/// Longest name of a program that the kernel stores (`BPF_OBJ_NAME_LEN`).
const _: () = assert!(GUARD.len() < 16);
/// Priorities of [`GUARD`]: directly before conntrack (`NF_IP_PRI_CONNTRACK`). The kernel permits one
/// BPF program of a priority at a hook (`nf_hook_entry_insert`), and in a takeover the predecessor has
/// one of them.
const BEFORE_CONNTRACK: [i32; 2] = [-201, -202];
/// Shared maps with one entry per forwarding entry.
const ENTRIES: [&str; 2] = ["fdb", "sources"];

/// Limit of recorded flows on the slow path, each at up to four places. A new one replaces the
/// oldest.
const SEEN_FLOWS: u32 = 65_536;

/// Whether programs take the tunnel off GSO packets for every tenant. Otherwise only the packets for
/// a tenant's own socket take the fast path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DecapGso {
    /// If the kernel has `BPF_F_ADJ_ROOM_DECAP_L4_UDP` (Linux 7.3).
    #[default]
    Probe,
    /// Never, for tests.
    Without,
    /// On every kernel, for tests. A kernel without the flag leaves the packets to the slow path.
    With,
}

impl DecapGso {
    fn raw(self) -> u32 {
        match self {
            DecapGso::Probe => abi::DECAP_PROBE,
            DecapGso::Without => abi::DECAP_WITHOUT,
            DecapGso::With => abi::DECAP_WITH,
        }
    }

    /// Whether the kernel has the flag.
    pub(crate) fn is_possible() -> bool {
        let Ok(btf) = Btf::from_vmlinux() else { return false };
        let flags = btf.type_by_name::<Enum<'_>>("bpf_adj_room_flags");
        let is_flag = |flag: &OsStr| flag == OsStr::new("BPF_F_ADJ_ROOM_DECAP_L4_UDP");
        flags.is_some_and(|flags| flags.iter().any(|value| value.name.is_some_and(is_flag)))
    }
}

/// Returns the constants of the programs, for the NICs' namespace or for all sandboxes.
pub(super) fn constants(in_sandbox: bool, decap: DecapGso) -> Vec<u8> {
    let (in_sandbox, tick, decap) = (in_sandbox.into(), tick(), decap.raw());
    abi::bytes(&RawConstants { in_sandbox, tick, decap, padding: 0 })
}

/// Returns the kernel's tick in ns: the resolution of the coarse clock. A second if unknown, which
/// leaves conntrack's timeouts as they are.
fn tick() -> u32 {
    const SECOND: u32 = 1_000_000_000;
    let resolution = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE);
    resolution.map_or(SECOND, |tick| u32::try_from(tick.tv_nsec()).unwrap_or(SECOND))
}

/// Why the kernel's verifier refused a program last.
static REFUSED: Mutex<Option<String>> = Mutex::new(None);

/// Sends libbpf's messages to the log. It would print them to stderr.
pub(super) fn quiet() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| {
        if let Some(refused) = refused(&text) {
            *lock(&REFUSED) = Some(refused);
        }
        tracing::debug!("{text}");
    })));
}

/// Returns the program and the reason in libbpf's message with the verifier's log.
fn refused(message: &str) -> Option<String> {
    let (program, log) = message.split_once(": -- BEGIN PROG LOAD LOG --\n")?;
    let program = program.rsplit_once("prog ").map_or(program, |(_, name)| name);
    // The last lines are statistics.
    let ends = ["-- END", "processed ", "verification time", "stack depth"];
    let is_reason = |line: &&str| !line.is_empty() && !ends.iter().any(|end| line.starts_with(end));
    let reason = log.lines().rev().find(is_reason)?;
    Some(format!("the kernel's verifier refuses program {program}: {reason}"))
}

pub(super) fn open(object: &[u8]) -> Result<OpenObject> {
    quiet();
    ObjectBuilder::default()
        .open_memory(object)
        .map_err(|e| failed("open", "BPF object", e.to_string()))
}

pub(super) fn load(object: OpenObject) -> Result<Object> {
    *lock(&REFUSED) = None;
    object.load().map_err(|e| {
        let problem = match (lock(&REFUSED).take(), e.kind()) {
            // The error for missing privileges is the same.
            (Some(refused), _) => refused,
            (None, ErrorKind::PermissionDenied) => {
                format!("needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (root): {e}")
            }
            (None, _) => format!("needs Linux 6.6 with BTF: {e}"),
        };
        failed("load", "BPF programs", problem)
    })
}

pub(super) fn set_up<'a>(name: &'a str) -> impl Fn(libbpf_rs::Error) -> Error + 'a {
    move |e| failed("set up", format!("map {name}"), e.to_string())
}

/// Finds a program by name.
pub(super) fn program<'a>(object: &'a Object, name: &str) -> Result<Program<'a>> {
    let found = object.progs().find(|program| program.name() == OsStr::new(name));
    found.ok_or_else(|| failed("find", format!("program {name}"), "none".into()))
}

/// Finds a map by name.
pub(super) fn map<'a>(object: &'a Object, name: &str) -> Result<libbpf_rs::Map<'a>> {
    let found = object.maps().find(|map| map.name() == OsStr::new(name));
    found.ok_or_else(|| failed("find", format!("map {name}"), "none".into()))
}

/// Returns the kernel's id of a program.
pub(super) fn id(program: BorrowedFd<'_>) -> Result<u32> {
    Program::id_from_fd(program).map_err(|e| failed("read the id of", "BPF program", e.to_string()))
}

impl Programs {
    /// Loads the programs for the NICs' namespace, with these limits of forwarding entries and
    /// connections. Attaches nothing.
    pub(crate) fn load(max_entries: u32, max_flows: u32, decap: DecapGso) -> Result<Programs> {
        let mut object = open(OBJECT)?;
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if ENTRIES.contains(&name.as_str()) {
                map.set_max_entries(max_entries).map_err(set_up(&name))?;
            } else if name == "connections" {
                map.set_max_entries(max_flows).map_err(set_up(&name))?;
            } else if name == "flows" || name == "tracked_flows" {
                // Two directions per connection.
                map.set_max_entries(max_flows.saturating_mul(2)).map_err(set_up(&name))?;
            } else if name == "seen_flows" {
                map.set_max_entries(SEEN_FLOWS).map_err(set_up(&name))?;
            } else if name.ends_with(".rodata") {
                map.set_initial_value(&constants(false, decap)).map_err(set_up(&name))?;
            }
        }
        // `CONFIG_NETFILTER_BPF_LINK`. Without it TCP connections get no verdicts.
        let has_guard = ProgramType::Netfilter.is_supported().unwrap_or(false);
        for mut program in object.progs_mut() {
            if program.name() == OsStr::new(GUARD) {
                program.set_autoload(has_guard);
            }
        }
        Ok(Programs { object: load(object)?, inward: None, has_guard, decap })
    }

    /// Whether the kernel offers BPF programs the functions to look up connections.
    pub(crate) fn can_look_up_connections() -> bool {
        let of_module = || Path::new("/sys/kernel/btf/nf_conntrack").exists();
        let of_kernel = || {
            let btf = Btf::from_vmlinux().ok()?;
            btf.type_by_name::<Func<'_>>("bpf_ct_change_timeout").map(drop)
        };
        of_module() || of_kernel().is_some()
    }

    /// Opens a map whose value size is not checked.
    pub(crate) fn map_of_any(&self, name: &str) -> Result<MapHandle> {
        MapHandle::try_from(&map(&self.object, name)?)
            .map_err(|e| failed("open", format!("map {name}"), e.to_string()))
    }

    /// Opens a map and checks that its values have `size` bytes.
    pub(crate) fn map(&self, name: &str, size: usize) -> Result<MapHandle> {
        let map = self.map_of_any(name)?;
        if map.value_size() as usize != size {
            let problem = format!("expected values of {size} bytes, got {}", map.value_size());
            return Err(failed("check", format!("map {name}"), problem));
        }
        Ok(map)
    }

    fn program(&self, role: Role) -> Result<Program<'_>> {
        let name = match role {
            Role::Encap => "encap",
            Role::Decap => "decap",
            Role::Outward => "outward",
            Role::Inward => "inward",
            Role::Leave => "leave",
            Role::Depart => "depart",
        };
        program(&self.object, name)
    }

    /// Returns the kernel's ids of the programs, so that another process can recognise them.
    pub(crate) fn ids(&self) -> Result<Vec<u32>> {
        // Programs that are not loaded have no id.
        let is_loaded =
            |program: &Program<'_>| program.name() != OsStr::new(GUARD) || self.has_guard;
        let own = self.object.progs().filter(is_loaded).map(|program| id(program.as_fd()));
        own.chain(self.inward.iter().map(|inward| Ok(inward.id))).collect()
    }

    /// Returns the addresses of the lists of functions at netfilter's hooks, in the calling thread's
    /// namespace. A list gets another address when a function comes or goes. Zeros for a sandbox.
    pub(crate) fn hook_lists(&self) -> Result<[u64; HOOK_LISTS]> {
        if self.inward.is_some() {
            return Ok([0; HOOK_LISTS]);
        }
        let program = program(&self.object, LISTS)?;
        let mut lists = RawHookLists { lists: [0; HOOK_LISTS] };
        sys::bpf_run::run(program.as_fd(), lists.as_mut_bytes())?;
        Ok(lists.lists)
    }

    /// Attaches the guard before conntrack, in the calling thread's namespace.
    pub(crate) fn guard(&mut self) -> Result<Vec<Link>> {
        if !self.has_guard {
            return Ok(Vec::new());
        }
        let found = self.object.progs_mut().find(|program| program.name() == OsStr::new(GUARD));
        let program = found.ok_or_else(|| failed("find", "program guard", "none".into()))?;
        let at = |protocol_family, priority| {
            program.attach_netfilter_with_opts(NetfilterOpts {
                protocol_family,
                hooknum: NF_INET_PRE_ROUTING,
                priority,
                ..NetfilterOpts::default()
            })
        };
        let attach = |family| {
            let [first, second] = BEFORE_CONNTRACK;
            // The first is in use: its owner's error is of no interest if the second is free.
            at(family, first)
                .or_else(|_| at(family, second))
                .map_err(|e| failed("attach to", "netfilter hook prerouting", e.to_string()))
        };
        [NFPROTO_IPV4, NFPROTO_IPV6].into_iter().map(attach).collect()
    }

    /// Whether these programs take the tunnel off GSO packets for every tenant.
    pub(crate) fn unwraps_gso(&self) -> bool {
        match self.decap {
            DecapGso::Probe => DecapGso::is_possible(),
            DecapGso::Without => false,
            DecapGso::With => true,
        }
    }

    /// Whether [`Programs::guard`] attaches a program.
    pub(crate) fn has_guard(&self) -> bool {
        self.has_guard
    }

    /// Attaches a program to its tcx hook at a device of the calling thread's namespace, after the
    /// existing ones.
    pub(crate) fn attach(&self, role: Role, ifindex: u32, name: &str) -> Result<tcx::Link> {
        let attached = match (role, &self.inward) {
            (Role::Inward, Some(inward)) => tcx::attach(inward.fd.as_fd(), ifindex, role.hook()),
            _ => tcx::attach(self.program(role)?.as_fd(), ifindex, role.hook()),
        };
        attached.map_err(|error| {
            failed(
                "attach to",
                format!("tcx {} of {name}", role.hook_name()),
                error.errno.to_string(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_verifier_names_program_and_reason() {
        let message = "libbpf: prog 'decap': -- BEGIN PROG LOAD LOG --\nFunc#3 ('fits') is safe for \
                       any args that match its prototype\ncombined stack size of 3 calls is 544. Too \
                       large\nprocessed 56904 insns (limit 1000000) max_states_per_insn 19\n-- END \
                       PROG LOAD LOG --\n";
        let expected = "the kernel's verifier refuses program 'decap': combined stack size of 3 calls \
                        is 544. Too large";
        assert_eq!(refused(message).as_deref(), Some(expected));
        assert_eq!(refused("libbpf: prog 'decap': BPF program load failed: -EACCES\n"), None);
    }
}
