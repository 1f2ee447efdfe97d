//! Two fresh namespaces joined by a veth pair, created with `ip`; they end with the last descriptor
//! of either.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use sys::netns::NetNs;

/// Address of the server's end.
pub const SERVER: &str = "192.0.2.2";
/// Device at either end.
pub const DEVICE: &str = "veth0";

/// A wire with a namespace at either end.
#[derive(Debug)]
pub struct Wire {
    pub client: NetNs,
    pub server: NetNs,
}

impl Wire {
    /// Builds it and waits until no address is tentative.
    pub fn new() -> Wire {
        let wire = Wire { client: NetNs::new().unwrap(), server: NetNs::new().unwrap() };
        let peer = path(&wire.server);
        ip(&wire.client, &["link", "add", DEVICE, "type", "veth", "peer", DEVICE, "netns", &peer]);
        for (netns, v4, v6) in [
            (&wire.client, "192.0.2.1/24", "2001:db8::1/64"),
            (&wire.server, "192.0.2.2/24", "2001:db8::2/64"),
        ] {
            ip(netns, &["addr", "add", v4, "dev", DEVICE]);
            ip(netns, &["addr", "add", v6, "dev", DEVICE, "nodad"]);
            ip(netns, &["link", "set", "lo", "up"]);
            ip(netns, &["link", "set", DEVICE, "up"]);
        }
        // A delayed work of the kernel detects the carrier; until then both ends drop packets that
        // they are given to send.
        let deadline = Instant::now() + Duration::from_secs(10);
        for netns in [&wire.client, &wire.server] {
            while !is_up(netns) {
                assert!(Instant::now() < deadline, "{DEVICE} does not come up");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        wire
    }

    /// The server's address with a port.
    pub fn server_at(port: u16) -> SocketAddr {
        SocketAddr::new(SERVER.parse::<IpAddr>().unwrap(), port)
    }
}

fn is_up(netns: &NetNs) -> bool {
    let listing = run_in(netns, "ip", &["-o", "link", "show", DEVICE]).stdout;
    String::from_utf8_lossy(&listing).contains("state UP")
}

/// The namespace's path for other programs.
pub fn path(netns: &NetNs) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd())
}

/// Runs a command in the namespace.
pub fn run_in(netns: &NetNs, program: &str, arguments: &[&str]) -> Output {
    netns
        .run(|| Command::new(program).args(arguments).output())
        .unwrap()
        .unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Runs `ip` in the namespace, which must succeed.
pub fn ip(netns: &NetNs, arguments: &[&str]) {
    let output = run_in(netns, "ip", arguments);
    assert!(
        output.status.success(),
        "ip {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Loads rules (nftables syntax) in the namespace.
pub fn nft(netns: &NetNs, rules: &str) {
    let output = run_in(netns, "nft", &[rules]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {rules}: {stderr}");
}

/// The wire, or the reason for its absence.
pub fn wire_or_skip() -> Result<Wire, String> {
    test_support::need::root()?;
    Ok(Wire::new())
}
