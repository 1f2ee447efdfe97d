//! The programs with the privileges of their units, as setpriv(1) gives them.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use test_support::{need, require};
use testbed::Host;

use super::foreground::{Foreground, OVERLANE};

/// A user of systemd's dynamic range.
const DYNAMIC: &str = "65519";

fn value(unit: &str, key: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/systemd").join(unit);
    let unit = std::fs::read_to_string(path).unwrap();
    unit.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned()
}

/// A program with the user and the ambient capabilities of a unit, and a `/dev/net/tun` with udev's
/// permissions.
fn confined(unit: &str) -> Command {
    let capabilities = value(unit, "AmbientCapabilities=").to_lowercase();
    assert_eq!(capabilities, value(unit, "CapabilityBoundingSet=").to_lowercase());
    let set: String =
        capabilities.split(' ').map(|name| format!(",+{}", &name["cap_".len()..])).collect();
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200 && \
                  exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh", "setpriv", "--no-new-privs"]);
    command.args(["--reuid", DYNAMIC, "--regid", DYNAMIC, "--clear-groups"]);
    command.arg(format!("--inh-caps=-all{set}")).arg(format!("--ambient-caps=-all{set}"));
    command.arg(format!("--bounding-set=-all{set}")).arg(OVERLANE);
    command
}

#[test]
fn vtep_starts_with_the_rights_of_its_unit_and_reads_its_file_again() {
    require!(need::root(), need::tun(), need::tool("setpriv"), need::tool("unshare"));
    let host = Host::new("alone").unwrap();
    host.netlink().set_up("lo").unwrap();
    let directory = tempfile::tempdir().unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let file = directory.path().join("vtep.toml");
    let write = |remote: &str| {
        let text = format!(
            "local = \"127.0.0.1\"\n[[network]]\nvni = 10\ntap = \"tap0\"\n\
             remotes = [\"{remote}\"]\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    write("127.0.0.2");
    let mut command = confined("overlane-vtep.service");
    command.arg("vtep").arg("--config").arg(&file);
    command.env("OVERLANE_RUNTIME_DIR", runtime(&directory));
    let (mut program, ready) = Foreground::start(&host, command, None);
    assert!(ready.contains(&format!("confined: user {DYNAMIC} (not root)")), "{ready}");
    // Without CAP_SETPCAP the bounding set stays, but grants nothing.
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.child.id())).unwrap();
    for line in ["CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{status}");
    }
    assert!(status.contains("Seccomp:\t2"), "{status}");
    write("127.0.0.3");
    program.signal(Signal::SIGHUP);
    assert_eq!(program.line(), "reloaded");
    program.signal(Signal::SIGTERM);
    for _ in 0..3 {
        program.line();
    }
    assert_eq!(program.end(), Some(0));
}

/// A directory that only that user may enter.
fn runtime(directory: &tempfile::TempDir) -> std::path::PathBuf {
    use std::os::unix::fs::DirBuilderExt;
    let path = directory.path().join("run");
    std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    let user = DYNAMIC.parse().unwrap();
    std::os::unix::fs::chown(&path, Some(user), Some(user)).unwrap();
    path
}
