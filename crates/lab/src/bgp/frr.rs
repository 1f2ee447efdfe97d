//! FRR: `zebra`, which writes routes to the kernel, and `bgpd`. Newer ones have `mgmtd` as well,
//! and FRR 10's `zebra` has its configuration from that, not from its file.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::unistd::{User, chown};
use testbed::{Host, Privileges, Process, Processes};

use super::{AS, Announce, BLOCK_PREFIX, CLUSTER_ID, LIMIT, POOL, Speaker, command, write};
use crate::guest_files::Besides;
use crate::unsupported::{Supported, Unsupported};
use crate::{Capabilities, Result};

/// Debian's package.
const PACKAGE: &str = "frr";
/// The programs used.
const PROGRAMS: [&str; 2] = ["zebra", "bgpd"];
/// Where there is one, it is used, too. It has no file to read, and is told.
const MANAGER: &str = "mgmtd";
/// `CMD_ERR_NO_MATCH` of `lib/command.h`.
const NO_SUCH_COMMAND: u8 = 2;
/// Its socket for that.
const MANAGER_VTY: &str = "/run/frr/mgmtd.vty";
/// Where packages install them: Debian's, others'.
const PLACES: [&str; 2] = ["/usr/lib/frr", "/usr/libexec/frr"];
/// The user that the programs become.
const USER: &str = "frr";
/// Configuration, sockets and PID files, in each tree.
const DIRECTORY: &str = "/run/frr";
/// `bgpd`'s way to `zebra`.
const ZSERV: &str = "/run/frr/zserv.api";
/// What answers once that is there. Who connects to [`ZSERV`] and says nothing is a client that
/// has failed: FRR 10 then handles no route.
const ZEBRA_VTY: &str = "/run/frr/zebra.vty";
/// What all programs are told: sockets of theirs, no TCP port, and what they print.
const MANNER: [&str; 11] = [
    "-z",
    ZSERV,
    "--vty_socket",
    DIRECTORY,
    "-P",
    "0",
    "-F",
    "datacenter",
    "--log",
    "stdout",
    "--log-level=informational",
];

/// Whether it is of a version, or newer: major and minor.
pub(super) fn since(wanted: (u32, u32)) -> Supported {
    let Some(bgpd) = find("bgpd") else { return Ok(()) };
    let output = command(&bgpd).arg("--version").output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let said = said.unwrap_or_else(|error| error.to_string());
    let (major, minor) = wanted;
    if version(&said).is_some_and(|version| version >= wanted) {
        return Ok(());
    }
    let first = said.lines().next().unwrap_or_default();
    Err(Unsupported::new(
        format!("{}: \"{first}\", and {major}.{minor} is needed", bgpd.display()),
        format!(
            "put the programs of FRR {major}.{minor} or newer first in PATH: bgpd, zebra, mgmtd"
        ),
    ))
}

/// Of `bgpd version 8.4.4`.
fn version(said: &str) -> Option<(u32, u32)> {
    let version = said.lines().next()?.strip_prefix("bgpd version ")?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether it is installed and may be run.
pub(super) fn installed(machine: &Capabilities) -> Supported {
    let missing = |what: String| Unsupported::new(what, format!("apt install {PACKAGE}"));
    if let Some(program) = PROGRAMS.iter().find(|program| find(program).is_none()) {
        return Err(missing(format!("{program} is not installed")));
    }
    if !matches!(User::from_name(USER), Ok(Some(_))) {
        return Err(missing(format!("there is no user {USER}")));
    }
    if machine.privileges() != Privileges::Root {
        // A user namespace has no second user to become.
        return Err(Unsupported::without_root("FRR needs root", "run as root"));
    }
    Ok(())
}

fn find(program: &str) -> Option<PathBuf> {
    sys::program::find(program, &PLACES)
}

/// Programs, and where they look their user and groups up.
pub(super) fn files() -> Besides {
    Besides {
        programs: PROGRAMS.iter().chain([&MANAGER]).filter_map(|program| find(program)).collect(),
        files: ["/etc/passwd", "/etc/group"].map(PathBuf::from).into(),
    }
}

/// Starts it in a host.
pub(super) fn start(tree: &Processes, host: &Host, speaker: &Speaker) -> Result<Vec<Process>> {
    start_with(tree, host, "", &configuration(speaker))
}

/// Starts it with these configurations of `zebra` and `bgpd`.
pub(super) fn start_with(
    tree: &Processes,
    host: &Host,
    zebra_reads: &str,
    bgpd_reads: &str,
) -> Result<Vec<Process>> {
    tree.inside(host, private_places)??;
    let own = |program: &str, text: &str| -> Result<Command> {
        let configuration = format!("{DIRECTORY}/{program}.conf");
        write(tree, host, &configuration, text)?;
        // Removed since it was probed: starting it fails, and names it.
        let mut command = command(find(program).unwrap_or_else(|| program.into()));
        command
            .args(["-f", &configuration, "-i", &format!("{DIRECTORY}/{program}.pid")])
            .args(MANNER);
        Ok(command)
    };
    let name = |program: &str| format!("{program} in {}", host.name());
    let mut manager = None;
    if let Some(program) = find(MANAGER) {
        let mut command = command(program);
        command.args(["-i", &format!("{DIRECTORY}/{MANAGER}.pid")]).args(MANNER);
        let started = tree.start_as(&name(MANAGER), host, &mut command)?;
        manager = Some(answers(tree, host, started, MANAGER_VTY)?);
    }
    let zebra = tree.start_as(&name("zebra"), host, &mut own("zebra", zebra_reads)?)?;
    // bgpd that comes too early tries again after 10 s.
    let zebra = answers(tree, host, zebra, ZEBRA_VTY)?;
    if manager.is_some() && !zebra_reads.is_empty() {
        let told = tree.inside(host, || tell(zebra_reads))?;
        told.map_err(|error| sys::Error::io("configure", MANAGER_VTY, &error))?;
    }
    let bgpd = tree.start_as(&name("bgpd"), host, &mut own("bgpd", bgpd_reads)?)?;
    Ok([bgpd, zebra].into_iter().chain(manager).collect())
}

/// Waits until a program takes connections at a socket.
fn answers(tree: &Processes, host: &Host, mut program: Process, socket: &str) -> Result<Process> {
    testbed::poll(&format!("{socket} in {}", host.name()), LIMIT, || {
        program.check()?;
        let connected = tree.inside(host, || UnixStream::connect(socket).map(drop))?;
        Ok(connected
            .map_err(|error| format!("connect {socket}: {error}\n{}", program.last_lines())))
    })?;
    Ok(program)
}

/// What begins the session with a peer, or ends it.
pub(super) fn session(peer: Ipv4Addr, up: bool) -> Command {
    let mut vtysh = command(find("vtysh").unwrap_or_else(|| "vtysh".into()));
    let shutdown = format!("{}neighbor {peer} shutdown", if up { "no " } else { "" });
    vtysh.args(["--vty_socket", DIRECTORY]);
    for line in ["configure terminal", &format!("router bgp {AS}"), &shutdown] {
        vtysh.args(["-c", line]);
    }
    vtysh
}

/// Tells the manager a configuration as vtysh does, which itself wants PAM and files of `/etc`:
/// a command and a NUL; then what it says, three NULs, and how it went (0: well)
/// (`vtysh_client_run` in `vtysh/vtysh.c`). What it does not know `zebra` has read itself.
fn tell(configuration: &str) -> io::Result<()> {
    let mut socket = UnixStream::connect(MANAGER_VTY)?;
    socket.set_read_timeout(Some(LIMIT))?;
    for line in ["enable", "configure terminal"].into_iter().chain(configuration.lines()) {
        socket.write_all(&[line.as_bytes(), &[0]].concat())?;
        let mut said = Vec::new();
        let mut bytes = [0; 256];
        let status = loop {
            match socket.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => said.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let [.., 0, 0, 0, status] = said[..] {
                break status;
            }
        };
        // FRR 9's manages other programs only.
        if status == NO_SUCH_COMMAND {
            return Ok(());
        }
        if status != 0 {
            let said = String::from_utf8_lossy(&said);
            let said = said.trim_matches(|c: char| c.is_control());
            return Err(io::Error::other(format!("\"{line}\" is refused ({status}): {said}")));
        }
    }
    Ok(())
}

fn configuration(speaker: &Speaker) -> String {
    let mut text = format!(
        "frr defaults datacenter
router bgp {AS}
 bgp router-id {}
",
        speaker.address
    );
    // Writing to a string never fails.
    if speaker.reflects() {
        let _ = writeln!(text, " bgp cluster-id {CLUSTER_ID}");
    }
    for peer in &speaker.peers {
        let _ = writeln!(text, " neighbor {peer} remote-as {AS}");
        let _ = writeln!(text, " neighbor {peer} update-source {}", speaker.address);
    }
    text += " address-family ipv4 unicast\n";
    if speaker.reflects() {
        for peer in &speaker.peers {
            let _ = writeln!(text, "  neighbor {peer} route-reflector-client");
        }
    }
    text += "  redistribute kernel route-map tenants\n";
    if let (Some(block), Announce::Block) = (speaker.block, speaker.announce) {
        // bgpd also writes a blackhole for what of it no tenant has.
        let _ = writeln!(text, "  aggregate-address {block}/{BLOCK_PREFIX} summary-only");
    }
    let _ = write!(
        text,
        " exit-address-family
ip prefix-list tenants seq 5 permit {POOL} ge 32
route-map tenants permit 10
 match ip address prefix-list tenants
"
    );
    text
}

/// Gives the calling thread's mount namespace, which is the tree's own, FRR's directory,
/// and a `/var/tmp` of its own: each program keeps its last messages there, below a path
/// that no option moves, and leaves them when it is killed (`TMPBASEDIR` in `lib/zlog.c`).
fn private_places() -> Result<()> {
    const KEPT: &str = "/var/tmp";
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), KEPT, Some("tmpfs"), flags, None::<&str>)
        .map_err(|e: Errno| sys::Error::new("mount", KEPT, e))?;
    std::fs::create_dir(DIRECTORY).map_err(|e| sys::Error::io("mkdir", DIRECTORY, &e))?;
    // It was there when the mode was probed.
    let user = User::from_name(USER).ok().flatten();
    let ids = (user.as_ref().map(|user| user.uid), user.as_ref().map(|user| user.gid));
    chown(Path::new(DIRECTORY), ids.0, ids.1)
        .map_err(|e| sys::Error::new("chown", DIRECTORY, e))?;
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use test_support::{need, require};

    use super::super::tests::speakers;
    use super::*;

    pub(crate) fn bgpd_is_installed() -> std::result::Result<(), String> {
        need::that(find("bgpd").is_some(), "bgpd is not installed")
    }

    /// Has `bgpd` read a configuration without a word.
    pub(crate) fn is_read_by_bgpd(text: &str) {
        let tree = Processes::new().unwrap();
        let host = Host::new("a").unwrap();
        tree.inside(&host, private_places).unwrap().unwrap();
        write(&tree, &host, "/run/frr/bgpd.conf", text).unwrap();
        let mut read = command(find("bgpd").unwrap());
        read.args(["--dryrun", "-f", "/run/frr/bgpd.conf"]);
        let said = tree.run(&host, &mut read).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(said, "", "{text}");
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version("bgpd version 8.4.4\nCopyright"), Some((8, 4)));
        assert_eq!(version("bgpd version 10.3\n"), Some((10, 3)));
        assert_eq!(version("bgpd version 10.0-dev"), Some((10, 0)));
        assert!(version("bgpd version 10.3") >= Some((8, 5)));
        for other in ["", "bgpd: not found", "bgpd version next", "zebra version 10.3"] {
            assert_eq!(version(other), None);
        }
    }

    #[test]
    fn frr_reads_every_configuration() {
        let texts: Vec<_> = speakers().iter().map(configuration).collect();
        assert!(texts[0].contains("summary-only") && !texts[1].contains("summary-only"));
        assert_eq!(texts[3].matches("route-reflector-client").count(), 2);
        // bgpd becomes another user even to read a file.
        require!(need::root(), bgpd_is_installed());
        texts.iter().for_each(|text| is_read_by_bgpd(text));
    }
}
