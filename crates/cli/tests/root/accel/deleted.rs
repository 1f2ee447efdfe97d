//! A namespace that is deleted while `accel run` serves it.

use std::process::{Child, Command, Stdio};

use test_support::{need, require};
use testbed::{Host, poll};

use super::foreground::{Foreground, LIMIT, OVERLANE};

/// A namespace that only its process keeps alive.
struct Held(Child);

impl Held {
    fn new() -> Held {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]).stdin(Stdio::null());
        let held = Held(command.spawn().unwrap());
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        poll("a namespace", LIMIT, || {
            let there = std::fs::read_link(held.path());
            Ok(there.ok().filter(|there| *there != own).ok_or("none yet".to_owned()))
        })
        .unwrap();
        held
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn delete(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_deleted_namespace_is_not_kept_alive() {
    require!(need::root());
    require!(need::tool("unshare"));
    let outside = Host::new("outside").unwrap();
    let mut held = Held::new();
    // The other end of this pair goes with the namespace.
    let pid = held.0.id().to_string();
    let add = ["link", "add", "veth0", "type", "veth", "peer", "name", "eth0", "netns", &pid];
    outside.run(Command::new("ip").args(add)).unwrap();
    let mut command = Command::new(OVERLANE);
    command.args(["accel", "run", "--all", "--netns", &held.path()]);
    let (mut foreground, said) = Foreground::start(&outside, command, None);
    assert!(said.starts_with("ready: no VXLAN device yet"), "{said}");
    assert!(outside.netlink().link("veth0").is_ok());
    held.delete();
    assert_eq!(foreground.end(), Some(0));
    poll("the end of the namespace", LIMIT, || {
        Ok(match outside.netlink().link("veth0") {
            Err(_) => Ok(()),
            Ok(link) => Err(format!("{link:?}")),
        })
    })
    .unwrap();
}
