//! Namespaces and devices that replaced others.

use std::os::fd::{AsFd, AsRawFd};

use settings::apply;
use settings::journal::{Journal, JournalError, Undone};
use sys::netns::NetNs;
use test_support::{inconclusive, need, require};

use super::bench::{Space, as_first_form, value};

/// Number of new namespaces until an inode number is reused.
const ATTEMPTS: u32 = 2000;

/// A replacement namespace with the same number and path.
fn replace(space: Space) -> Option<Space> {
    let Space { netns, path } = space;
    let (inode, fd) = (netns.inode(), netns.as_fd().as_raw_fd());
    drop(netns);
    let mut others = Vec::new();
    for _ in 0..ATTEMPTS {
        let netns = NetNs::new().unwrap();
        if netns.inode() != inode {
            others.push(netns);
            if others.len() > 20 {
                others.clear();
            }
            continue;
        }
        // Target of the path.
        let at = nix::unistd::dup(&netns).unwrap();
        let same = at.as_raw_fd() == fd;
        if same {
            let netns = NetNs::from_fd(at).unwrap();
            return Some(Space { netns, path });
        }
        let path = format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd());
        return Some(Space { netns, path });
    }
    None
}

#[test]
fn a_namespace_with_the_number_of_another_is_not_changed() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let space = Space::new();
    let change = space.forwarding();
    let entry = journal.make("try", &change, None).unwrap();
    let Some(other) = replace(space) else { inconclusive!("no inode number came again") };
    // It looks like the first one after the change.
    let mut there = entry.change.clone();
    let place = there.place.as_mut().unwrap();
    place.cookie = other.netns.cookie().unwrap();
    place.path = Some(other.path.clone());
    apply::write(&there, "1").unwrap();
    let undone = journal.undo(&entry).unwrap();
    assert!(matches!(&undone, Undone::Gone(reason) if reason.contains("cookie")), "{undone:?}");
    assert_eq!(value(&there), "1");
    assert_eq!(journal.entries().unwrap(), []);

    // An entry of an older format cannot distinguish them.
    let entry = journal.make("try", &other.change("sysctl -w net.ipv4.ip_no_pmtu_disc=1"), None);
    let entry = entry.unwrap();
    as_first_form(directory.path(), &entry, None);
    let old = journal.entries().unwrap().remove(0);
    assert_eq!(old.change.place.as_ref().unwrap().cookie, None);
    let error = journal.undo(&old).unwrap_err();
    assert!(error.to_string().contains("from an earlier version"), "{error}");
    assert_eq!(value(&entry.change), "1");
    assert_eq!(journal.entries().unwrap().len(), 1, "the entry stays");
    journal.forget(&old).unwrap();
}

#[test]
fn a_path_that_leads_to_something_else_is_not_waited_for() {
    require!(need::root());
    let place = tempfile::tempdir().unwrap();
    let journal = Journal::open(&place.path().join("journal")).unwrap();
    let space = Space::new();
    let mut change = space.forwarding();
    let path = place.path().join("name");
    std::os::unix::fs::symlink(&space.path, &path).unwrap();
    change.place.as_mut().unwrap().path = Some(path.to_str().unwrap().to_owned());
    let entry = journal.make("try", &change, None).unwrap();
    std::fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Only a process leads there, neither a descriptor of this process nor a path.
    let mut inside = std::process::Command::new("sleep");
    let mut inside = space.netns.run(|| inside.arg("60").spawn().unwrap()).unwrap();
    let undone = journal.undo(&entry);
    inside.kill().unwrap();
    inside.wait().unwrap();
    assert_eq!(undone.unwrap(), Undone::Restored);
}

#[test]
fn settings_of_an_earlier_boot_are_left_alone() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let space = Space::new();
    let entry = journal.make("try", &space.forwarding(), None).unwrap();
    as_first_form(directory.path(), &entry, Some("another"));
    let old = journal.entries().unwrap().remove(0);
    assert!(old.rebooted());
    assert_eq!(journal.undo(&old).unwrap(), Undone::AlreadyThere { rebooted: true });
    assert_eq!(value(&entry.change), "1", "somebody else's by now");
}

#[test]
fn a_device_in_place_of_another_is_not_changed() {
    require!(need::root(), need::tool("ip"), need::tool("nsenter"));
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(directory.path()).unwrap();
    let space = Space::new();
    let unknown = |entry: &settings::journal::Entry, named: &str| {
        let error = journal.undo(entry).unwrap_err();
        assert!(matches!(error, JournalError::Apply(apply::Error::Unknown { .. })), "{error}");
        assert!(error.to_string().contains(named), "{error}");
        assert_eq!(journal.entries().unwrap().len(), 1, "the entry stays");
        journal.forget(entry).unwrap();
    };
    let make = |words: &str| journal.make("try", &space.change(words), None).unwrap();
    let mtu = |device: &str| {
        let links = space.netns.run(|| netstate::Netlink::open().unwrap().links().unwrap());
        links.unwrap().into_iter().find(|link| link.name == device).unwrap().mtu
    };
    let add = "link add v0 index 77 address 02:00:00:00:00:01 type veth peer name v1";
    space.ip(add);

    // Recreated with the same name, index and value.
    let entry = make("ip link set v0 mtu 1400");
    space.ip("link del v0");
    space.ip(&add.replace(":01 ", ":02 "));
    space.ip("link set v0 mtu 1400");
    unknown(&entry, "had the address 02:00:00:00:00:01; v0 at that index has 02:00:00:00:00:02");
    assert_eq!(mtu("v0"), 1400);

    // A link of another kind.
    space.ip("link set v0 mtu 1500");
    let entry = make("ip link set v0 mtu 1400");
    space.ip("link del v0");
    space.ip("link add v0 index 77 address 02:00:00:00:00:02 type bridge");
    space.ip("link set v0 mtu 1400");
    unknown(&entry, "kind bridge");
    assert_eq!(mtu("v0"), 1400);
    space.ip("link del v0");

    // The device is gone.
    space.ip(add);
    let entry = make("ip link set v0 mtu 1400");
    space.ip("link del v0");
    assert!(matches!(journal.undo(&entry).unwrap(), Undone::Gone(_)));

    // The same device under another name.
    space.ip(add);
    let entry = make("ip link set v0 mtu 1400");
    let sysctl = make("sysctl -w net.ipv4.conf.v0.rp_filter=2");
    let file = make("sh -c 'echo 20000 > /sys/class/net/v0/gro_flush_timeout'");
    space.ip("link set v0 name w0");
    for entry in [&file, &sysctl, &entry] {
        assert_eq!(journal.undo(entry).unwrap(), Undone::Restored);
    }
    assert_eq!(mtu("w0"), 1500);

    // The device of a sysctl.
    let entry = make("sysctl -w net.ipv4.conf.w0.rp_filter=2");
    space.ip("link del w0");
    space.ip("link add w0 index 77 address 02:00:00:00:00:03 type veth peer name w1");
    unknown(&entry, "had the address");

    // A bridge takes its address from its ports.
    space.ip("link add b0 type bridge");
    let entry = make("ip link set b0 mtu 1400");
    space.ip("link set w0 master b0");
    space.ip("link set b0 mtu 1400");
    assert_eq!(journal.undo(&entry).unwrap(), Undone::Restored);
}
