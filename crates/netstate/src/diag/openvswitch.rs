//! Datapaths of Open vSwitch, and counts of their lookups.
//!
//! The kernel reports its datapaths by generic netlink (`include/uapi/linux/openvswitch.h`), the
//! daemon its user-space datapaths by its control socket (`ovs-appctl(8)`, JSON-RPC 1.0;
//! `dpctl/show` of `ovs-dpctl(8)`). A daemon that hangs does not keep the kernel from answering.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_GENERIC;
use nix::sys::socket::sockopt::SendTimeout;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};
use sys::process::Process;

use crate::dump::{attribute, dump, text};
use crate::netlink::Result;
use crate::proc::{ParseError, decimal};

// include/uapi/linux/genetlink.h.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Size of `struct genlmsghdr`; below, with `struct ovs_header` after it.
const GENERIC_HEADER: usize = 4;
const HEADER: usize = 8;
// include/uapi/linux/openvswitch.h.
const OVS_DP_CMD_GET: u8 = 3;
const OVS_DATAPATH_VERSION: u8 = 2;
const OVS_DP_ATTR_NAME: u16 = 1;
const OVS_DP_ATTR_STATS: u16 = 3;
/// Command name of the daemon, as in `/proc/PID/comm`.
pub const DAEMON: &str = "ovs-vswitchd";
/// Time limit for a daemon's answer. A daemon that is busy for longer loses packets anyway.
const PATIENCE: Duration = Duration::from_millis(300);
/// Limit of bytes of an answer, enough for ten thousand ports.
const MOST_BYTES: usize = 16 << 20;
/// Limit of descriptors read per daemon. It has some per port.
const MOST_DESCRIPTORS: usize = 65_536;
/// Name of the answer in errors.
const SHOWN: &str = "dpctl/show";

/// Packets that a datapath has looked up since its creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Datapath {
    /// Name as in `ovs-dpctl`: `system@ovs-system`, `netdev@ovs-netdev`.
    pub name: String,
    /// Packets with a matching flow.
    pub hit: u64,
    /// Packets sent to the daemon (upcalls).
    pub missed: u64,
    /// Packets dropped because they could not be sent to the daemon.
    pub lost: u64,
}

/// Datapaths of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Datapaths {
    /// Datapaths of the kernel and of daemons that answered.
    pub known: Vec<Datapath>,
    /// Daemons that did not answer, with the reason.
    pub unanswered: Vec<String>,
}

/// Reads the datapaths of the calling thread's namespace: the kernel's, and those of the daemons
/// with these process IDs.
///
/// # Errors
/// If the kernel refuses to list its datapaths.
pub fn datapaths(daemons: &[u32]) -> Result<Datapaths> {
    let mut all = Datapaths::default();
    // Without the module, there is nothing to list.
    if std::path::Path::new("/sys/module/openvswitch").exists() {
        all.known = kernel_datapaths()?;
    }
    for pid in daemons {
        match user_space_datapaths(*pid) {
            Ok(known) => all.known.extend(known),
            Err(reason) => all.unanswered.push(format!("{DAEMON} {pid}: {reason}")),
        }
    }
    Ok(all)
}

fn kernel_datapaths() -> Result<Vec<Datapath>> {
    // List all families: a request by name would load the module.
    let mut family = None;
    let ask = [CTRL_CMD_GETFAMILY, 1, 0, 0];
    dump(NETLINK_GENERIC, (GENL_ID_CTRL, &ask), "netlink families", |_, payload| {
        let payload = payload.get(GENERIC_HEADER..).unwrap_or_default();
        if text(attribute(payload, CTRL_ATTR_FAMILY_NAME).unwrap_or_default()) == "ovs_datapath" {
            let id = attribute(payload, CTRL_ATTR_FAMILY_ID).and_then(|id| id.first_chunk());
            family = id.map(|id| u16::from_ne_bytes(*id));
        }
    })?;
    let mut datapaths = Vec::new();
    if let Some(family) = family {
        let ask = [OVS_DP_CMD_GET, OVS_DATAPATH_VERSION, 0, 0, 0, 0, 0, 0];
        dump(NETLINK_GENERIC, (family, &ask), "Open vSwitch's datapaths", |kind, payload| {
            if kind == family {
                datapaths.extend(kernel_datapath(payload));
            }
        })?;
    }
    Ok(datapaths)
}

/// Decodes an answer: `struct genlmsghdr`, `struct ovs_header`, attributes.
pub fn kernel_datapath(payload: &[u8]) -> Option<Datapath> {
    let payload = payload.get(HEADER..)?;
    // struct ovs_dp_stats.
    let stats = attribute(payload, OVS_DP_ATTR_STATS)?;
    let number = |at: usize| Some(u64::from_ne_bytes(*stats.get(8 * at..)?.first_chunk()?));
    Some(Datapath {
        name: format!("system@{}", text(attribute(payload, OVS_DP_ATTR_NAME)?)),
        hit: number(0)?,
        missed: number(1)?,
        lost: number(2)?,
    })
}

/// Returns the user-space datapaths of a daemon, or why they are unknown.
fn user_space_datapaths(pid: u32) -> std::result::Result<Vec<Datapath>, String> {
    let place = control_socket(pid)?;
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    let mut known = shown(&ask(&path, SHOWN)?).map_err(|error| error.to_string())?;
    // The kernel's datapaths are listed separately.
    known.retain(|datapath| !datapath.name.starts_with("system@"));
    Ok(known)
}

/// Finds the daemon's control socket among the sockets it listens on, by name. Any user can run a
/// process with the daemon's name, so nothing about it is trusted: path lookups cross only mounts
/// that no other user can make.
fn control_socket(pid: u32) -> std::result::Result<OwnedFd, String> {
    let said = |error: sys::Error| error.to_string();
    let process = Process::open(pid).map_err(said)?;
    // A path lookup could enter another user's file system.
    if !process.has_trusted_mounts() {
        return Err("another user controls its mounts".to_owned());
    }
    let (numbers, _) = process.descriptors(MOST_DESCRIPTORS).map_err(said)?;
    let own: BTreeSet<String> = numbers
        .iter()
        .filter_map(|number| process.descriptor(number).ok()?.into_string().ok())
        .filter_map(|target| {
            Some(target.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    // Columns: Num RefCount Protocol Flags Type St Inode Path. Lists the sockets of the namespace.
    let sockets = process.read("net/unix", MOST_BYTES).map_err(said)?;
    let found = sockets.text.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [.., inode, path] = words[..] else { return None };
        (own.contains(inode) && path.starts_with('/') && path.ends_with(".ctl")).then_some(path)
    });
    let path = found.ok_or_else(|| "no control socket (*.ctl) among its sockets".to_owned())?;
    process.place(path.as_ref()).map_err(said)
}

/// Returns the daemon's answer to a command.
fn ask(path: &str, command: &str) -> std::result::Result<String, String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what} {path}: {error}");
    let end = Instant::now() + PATIENCE;
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|e| failed("socket", &e))?;
    // If the queue of a hanging daemon is full, connect() blocks, too.
    let patience = TimeVal::new(0, PATIENCE.as_micros() as i64);
    setsockopt(&fd, SendTimeout, &patience).map_err(|e| failed("setsockopt", &e))?;
    let address = UnixAddr::new(path).map_err(|e| failed("connect", &e))?;
    connect(fd.as_raw_fd(), &address).map_err(|e| failed("connect", &e))?;
    let mut stream = UnixStream::from(fd);
    let request = format!("{{\"id\":0,\"method\":\"{command}\",\"params\":[]}}");
    stream.write_all(request.as_bytes()).map_err(|e| failed("write", &e))?;
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 << 10];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        // A hanging or hostile daemon must not block the caller.
        if left.is_zero() || bytes.len() > MOST_BYTES {
            return Err(format!("{path}: no complete answer within {} ms", PATIENCE.as_millis()));
        }
        stream.set_read_timeout(Some(left)).map_err(|e| failed("setsockopt", &e))?;
        match stream.read(&mut chunk) {
            // The daemon has ended, or has closed the connection before its answer.
            Ok(0) => return Err(format!("{path}: connection closed after {} bytes", bytes.len())),
            Ok(length) => bytes.extend(&chunk[..length]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
            // With a timeout set, this also happens after SIGCONT (signal(7)).
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(failed("read", &e)),
        }
        if let Some(answer) = reply(&bytes) {
            return answer.map_err(|error| failed(command, &error));
        }
    }
}

/// The used fields of a JSON-RPC 1.0 reply.
#[derive(Deserialize)]
struct Reply {
    result: Option<String>,
    error: Option<serde_json::Value>,
}

/// Returns the result or the error of a reply. `None`: incomplete.
pub fn reply(bytes: &[u8]) -> Option<std::result::Result<String, String>> {
    match serde_json::Deserializer::from_slice(bytes).into_iter::<Reply>().next()? {
        Ok(Reply { result: Some(result), .. }) => Some(Ok(result)),
        Ok(Reply { error, .. }) => Some(Err(error.map_or_else(
            || "neither a result nor an error".to_owned(),
            |error| error.as_str().map_or_else(|| error.to_string(), str::to_owned),
        ))),
        // More of the reply is to come.
        Err(error) if error.is_eof() => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

/// Parses the output of `dpctl/show`: for each datapath a name and a colon, then indented lines,
/// one of which is `lookups: hit:N missed:N lost:N`.
///
/// # Errors
/// A line of lookups in another format, or before any datapath.
pub fn shown(text: &str) -> std::result::Result<Vec<Datapath>, ParseError> {
    let mut known = Vec::new();
    let mut name = None;
    for (index, line) in text.lines().enumerate() {
        if !line.starts_with(' ') {
            name = line.strip_suffix(':');
        }
        let Some(counts) = line.trim_start().strip_prefix("lookups:") else { continue };
        let wrong = |expected| ParseError::new(SHOWN, index + 1, "lookups", expected, line);
        let name = name.ok_or_else(|| wrong("a datapath's name before it"))?;
        let mut words = counts.split_ascii_whitespace();
        let mut number = |field: &str| {
            let word = words.next().and_then(|word| word.strip_prefix(field)?.strip_prefix(':'));
            decimal(SHOWN, index + 1, field, word)
        };
        known.push(Datapath {
            name: name.to_owned(),
            hit: number("hit")?,
            missed: number("missed")?,
            lost: number("lost")?,
        });
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Open vSwitch 3.1.0.
    const GOLDEN: &str = "\
netdev@ovs-netdev:
  lookups: hit:23 missed:7 lost:1
  flows: 3
  port 0: ovs-netdev (tap)
  port 1: br0 (tap)
system@ovs-system:
  lookups: hit:0 missed:0 lost:0
  flows: 0
  masks: hit:0 total:0 hit/pkt:0.00
";

    #[test]
    fn the_daemon_s_output_is_parsed() {
        let known = shown(GOLDEN).unwrap();
        let first = Datapath { name: "netdev@ovs-netdev".to_owned(), hit: 23, missed: 7, lost: 1 };
        assert_eq!((known.len(), &known[0]), (2, &first));
        assert_eq!(known[1].name, "system@ovs-system");
        assert!(shown("").unwrap().is_empty());
        let error = shown("netdev@x:\n  lookups: hit:1 missed:2\n").unwrap_err();
        assert_eq!((error.line, error.field.as_str()), (2, "lost"));
        assert!(shown("  lookups: hit:1 missed:2 lost:3\n").is_err());
    }

    #[test]
    fn replies_are_whole_or_wait() {
        assert_eq!(reply(br#"{"id":0,"result":"a\nb","error":null}"#), Some(Ok("a\nb".to_owned())));
        assert_eq!(reply(br#"{"id":0,"result":"a\n"#), None);
        assert_eq!(reply(b""), None);
        let error = br#"{"id":0,"result":null,"error":"\"x\" is not a valid command"}"#;
        assert_eq!(reply(error), Some(Err("\"x\" is not a valid command".to_owned())));
        assert!(reply(b"plain").is_some_and(|answer| answer.is_err()));
    }
}
