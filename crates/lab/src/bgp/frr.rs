//! FRR: `zebra`, which writes routes to the kernel, and `bgpd`. Newer versions add `mgmtd`. In
//! FRR 10, `zebra` gets its configuration from `mgmtd`, not from its own file.

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

/// Debian package.
const PACKAGE: &str = "frr";
const PROGRAMS: [&str; 2] = ["zebra", "bgpd"];
/// Started if it exists. It reads no file; its configuration is sent to it.
const MANAGER: &str = "mgmtd";
/// `CMD_ERR_NO_MATCH` of `lib/command.h`.
const NO_SUCH_COMMAND: u8 = 2;
/// Control socket of the manager.
const MANAGER_VTY: &str = "/run/frr/mgmtd.vty";
/// Directories where packages install the programs: Debian's, other distributions'.
const PLACES: [&str; 2] = ["/usr/lib/frr", "/usr/libexec/frr"];
/// User that the programs switch to.
const USER: &str = "frr";
/// Configuration, sockets and PID files, in each tree.
const DIRECTORY: &str = "/run/frr";
/// Socket by which `bgpd` reaches `zebra`.
const ZSERV: &str = "/run/frr/zserv.api";
/// Control socket of `zebra`, connected to check that it is ready. Do not connect to [`ZSERV`]
/// for that: a silent client counts as failed, and FRR 10 then handles no route.
const ZEBRA_VTY: &str = "/run/frr/zebra.vty";
/// Options of all programs: private sockets, no TCP port, log to standard output.
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

/// Checks whether FRR has at least this version, major and minor.
pub(super) fn since(wanted: (u32, u32)) -> Supported {
    // `installed` reports missing programs.
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
        format!("{}: \"{first}\", but {major}.{minor} is required", bgpd.display()),
        format!("install FRR {major}.{minor} or newer first in PATH: bgpd, zebra, mgmtd"),
    ))
}

/// Parses `bgpd version 8.4.4`.
fn version(said: &str) -> Option<(u32, u32)> {
    let version = said.lines().next()?.strip_prefix("bgpd version ")?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Checks whether FRR is installed and this process may run it.
pub(super) fn installed(machine: &Capabilities) -> Supported {
    let missing = |what: String| Unsupported::new(what, format!("apt install {PACKAGE}"));
    if let Some(program) = PROGRAMS.iter().find(|program| find(program).is_none()) {
        return Err(missing(format!("{program} is not installed")));
    }
    if !matches!(User::from_name(USER), Ok(Some(_))) {
        return Err(missing(format!("there is no user {USER}")));
    }
    if machine.privileges() != Privileges::Root {
        // FRR switches to another user, which a user namespace does not have.
        return Err(Unsupported::without_root("FRR needs root", "run as root"));
    }
    Ok(())
}

fn find(program: &str) -> Option<PathBuf> {
    sys::program::find(program, &PLACES)
}

/// Returns its programs, and the files in which they look up user and groups.
pub(super) fn files() -> Besides {
    Besides {
        programs: PROGRAMS.iter().chain([&MANAGER]).filter_map(|program| find(program)).collect(),
        files: ["/etc/passwd", "/etc/group"].map(PathBuf::from).into(),
    }
}

pub(super) fn start(tree: &Processes, host: &Host, speaker: &Speaker) -> Result<Vec<Process>> {
    start_with(tree, host, "", &configuration(speaker))
}

/// Starts FRR with these configurations of `zebra` and `bgpd`.
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
        // If it was removed since the probe, starting it fails with its name.
        let mut command = command(find(program).unwrap_or_else(|| program.into()));
        command
            .args(["-f", &configuration, "-i", &format!("{DIRECTORY}/{program}.pid")])
            .args(MANNER);
        Ok(command)
    };
    let name = |program: &str| format!("{program} in {}", host.name());
    let mut manager = None;
    // Start it first: zebra of FRR 10 gets its configuration from it.
    if let Some(program) = find(MANAGER) {
        let mut command = command(program);
        command.args(["-i", &format!("{DIRECTORY}/{MANAGER}.pid")]).args(MANNER);
        let started = tree.start_as(&name(MANAGER), host, &mut command)?;
        manager = Some(answers(tree, host, started, MANAGER_VTY)?);
    }
    let zebra = tree.start_as(&name("zebra"), host, &mut own("zebra", zebra_reads)?)?;
    // Wait: a bgpd that finds no zebra retries only after 10 s.
    let zebra = answers(tree, host, zebra, ZEBRA_VTY)?;
    // Without a manager, zebra reads its own file.
    if manager.is_some() && !zebra_reads.is_empty() {
        let configured = tree.inside(host, || tell(zebra_reads))?;
        configured.map_err(|error| sys::Error::io("configure", MANAGER_VTY, &error))?;
    }
    let bgpd = tree.start_as(&name("bgpd"), host, &mut own("bgpd", bgpd_reads)?)?;
    Ok([bgpd, zebra].into_iter().chain(manager).collect())
}

/// Waits until a program accepts connections at a socket.
fn answers(tree: &Processes, host: &Host, mut program: Process, socket: &str) -> Result<Process> {
    testbed::poll(&format!("{socket} in {}", host.name()), LIMIT, || {
        program.check()?;
        let connected = tree.inside(host, || UnixStream::connect(socket).map(drop))?;
        Ok(connected
            .map_err(|error| format!("connect {socket}: {error}\n{}", program.last_lines())))
    })?;
    Ok(program)
}

/// Returns the command that enables or shuts down the session with a peer.
pub(super) fn session(peer: Ipv4Addr, up: bool) -> Command {
    let mut vtysh = command(find("vtysh").unwrap_or_else(|| "vtysh".into()));
    let shutdown = format!("{}neighbor {peer} shutdown", if up { "no " } else { "" });
    vtysh.args(["--vty_socket", DIRECTORY]);
    for line in ["configure terminal", &format!("router bgp {AS}"), &shutdown] {
        vtysh.args(["-c", line]);
    }
    vtysh
}

/// Sends a configuration to the manager. vtysh would need PAM and files in `/etc`, so speak its
/// protocol: a command and a NUL; the answer is text, three NULs and a status, 0 for success
/// (`vtysh_client_run` in `vtysh/vtysh.c`). If the manager does not know a command, `zebra` has
/// read it from its file.
fn tell(configuration: &str) -> io::Result<()> {
    let mut socket = UnixStream::connect(MANAGER_VTY)?;
    socket.set_read_timeout(Some(LIMIT))?;
    for line in ["enable", "configure terminal"].into_iter().chain(configuration.lines()) {
        socket.write_all(&[line.as_bytes(), &[0]].concat())?;
        let mut said = Vec::new();
        let mut bytes = [0; 256];
        let status = loop {
            match socket.read(&mut bytes) {
                // The daemon has closed the connection before its status.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => said.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let [.., 0, 0, 0, status] = said[..] {
                break status;
            }
        };
        // FRR 9's manager does not manage zebra.
        if status == NO_SUCH_COMMAND {
            return Ok(());
        }
        if status != 0 {
            let said = String::from_utf8_lossy(&said);
            let said = said.trim_matches(|c: char| c.is_control());
            return Err(io::Error::other(format!("command \"{line}\" failed ({status}): {said}")));
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
        // bgpd also installs a blackhole route for unused addresses of the block.
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

/// Prepares the mount namespace of the calling thread, which is the tree's: FRR's directory and
/// a private `/var/tmp`. Each program keeps its last messages below that fixed path, and leaves
/// them behind when killed (`TMPBASEDIR` in `lib/zlog.c`).
fn private_places() -> Result<()> {
    const KEPT: &str = "/var/tmp";
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), KEPT, Some("tmpfs"), flags, None::<&str>)
        .map_err(|e: Errno| sys::Error::new("mount", KEPT, e))?;
    std::fs::create_dir(DIRECTORY).map_err(|e| sys::Error::io("mkdir", DIRECTORY, &e))?;
    // The user existed when the mode was probed.
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

    /// Asserts that `bgpd` accepts a configuration without a message.
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
        // bgpd switches users even to check a file.
        require!(need::root(), bgpd_is_installed());
        texts.iter().for_each(|text| is_read_by_bgpd(text));
    }
}
