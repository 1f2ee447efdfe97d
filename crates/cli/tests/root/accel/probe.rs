//! `accel on --probe`: a path that damages packets returns its devices to the slow path.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use test_support::{need, require};

use super::foreground::{Foreground, OVERLANE, path};
use super::{Served, network, text};

/// Changes the first bytes of the payload of datagrams to the probe's port.
const DAMAGE: &str = "table netdev damage { chain c { type filter hook egress device eth0 \
                      priority 0; udp dport 5211 @th,64,16 set 0xdead; }; }";

#[test]
fn the_fast_path_stays_on_over_a_sound_path_only() {
    let network = require!(network());
    require!(need::tool("nft"));
    let a = Served::of(&network, "a");
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "a secret of the tests 7Jx0").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let token = token.to_str().unwrap();
    let mut command = Command::new(OVERLANE);
    command.args(["measure", "serve", "--bind", "0.0.0.0", "--token", token]);
    let (_server, ready) = Foreground::start(network.server(), command, None);
    assert!(ready.starts_with("ready: "), "{ready}");

    let peer = network.address.target.ip().to_string();
    let from = path(network.client());
    let words = ["on", "vxlan0", "--probe", &peer, "--probe-from", &from, "--token", token];
    let on = a.accel(&words);
    assert_eq!(on.status.code(), Some(0), "{}{}", text(&on.stdout), text(&on.stderr));
    assert!(text(&on.stdout).contains("arrived undamaged"), "{}", text(&on.stdout));
    assert_eq!(a.status()["devices"][0]["device"], "vxlan0");

    // It was on before, so it stays on.
    network.client().nft(DAMAGE).unwrap();
    let on = a.accel(&words);
    assert_eq!(on.status.code(), Some(10), "{}{}", text(&on.stdout), text(&on.stderr));
    assert!(text(&on.stderr).contains("stays on"), "{}", text(&on.stderr));
    assert_eq!(a.status()["devices"][0]["device"], "vxlan0");

    a.off();
    let on = a.accel(&words);
    assert_eq!(on.status.code(), Some(10), "{}{}", text(&on.stdout), text(&on.stderr));
    let said = text(&on.stderr);
    assert!(said.contains("is off again") && said.contains("the slow path does so, too"), "{said}");
    assert!(text(&on.stdout).contains("CORRUPTED to the peer"), "{}", text(&on.stdout));
    assert!(a.status().is_null(), "{}", a.status());

    // A path that cannot be probed is not accelerated either.
    let nobody = ["on", "vxlan0", "--probe", "127.0.0.1:9", "--token", token];
    let on = a.accel(&nobody);
    assert_eq!(on.status.code(), Some(1), "{}{}", text(&on.stdout), text(&on.stderr));
    assert!(text(&on.stderr).contains("the path was not probed"), "{}", text(&on.stderr));
    assert!(a.status().is_null(), "{}", a.status());
}
