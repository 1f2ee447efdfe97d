//! Commands whose inverse is the previous value: accepted as changes, made through the journal, and
//! undone to the previous state.

use std::process::Command;

use settings::Change;
use settings::journal::{Journal, JournalError, Undone};
use settings::proposal::{self, ProposalError};
use settings::trial::Trial;
use test_support::{need, require};
use testbed::{Host, NIC, Offload, Wire};

/// A host, and the one at the other end of its wire.
fn hosts() -> Result<[Host; 2], String> {
    need::networks()?;
    let [a, b] = Wire { mtu: 1500, offload: Offload::Full }.hosts().unwrap();
    let add = ["tuntap", "add", "dev", "tap0", "mode", "tap"];
    a.run(Command::new("ip").args(add)).unwrap();
    Ok([a, b])
}

fn changes(host: &Host, command: &str) -> Result<Vec<Change>, ProposalError> {
    host.netns().run(|| proposal::changes(command)).unwrap()
}

fn value(host: &Host, change: &Change) -> String {
    host.netns().run(|| settings::apply::read(change).unwrap().to_string()).unwrap()
}

#[test]
fn a_known_command_is_executed_and_undone() {
    let [host, _other] = require!(hosts());
    let directory = tempfile::tempdir().unwrap();
    for (command, count) in [
        ("ethtool -K nic0 gro off", 1),
        // All TSO features of the kernel, and one more.
        ("sudo /usr/sbin/ethtool --offload nic0 tso off gso off", 0),
        ("ethtool -K nic0 tx-udp_tnl-segmentation off", 1),
        ("ethtool -C tap0 rx-frames 16", 1),
        ("ip link set dev nic0 mtu 1400 txqueuelen 500", 2),
        ("ip link set nic0 gso_max_size 16000", 1),
        ("ip link set nic0 down", 1),
        ("sysctl -w net.ipv4.ip_forward=1 net/ipv4/conf/all/rp_filter=2", 2),
        ("sysctl -w net.ipv4.tcp_rmem='4096 65536 1000000'", 1),
        ("echo 3 > /sys/class/net/nic0/queues/rx-0/rps_cpus", 1),
        ("sh -c 'echo 20000 > /sys/class/net/nic0/gro_flush_timeout'", 1),
        // The same by name.
        ("sysctl:net.ipv4.ip_forward=1", 1),
        ("sysctl:net.ipv4.tcp_rmem=4096 65536 1000000", 1),
        ("feature:gro@nic0=off", 1),
        ("feature:tso@nic0=off", 0),
        ("offload@nic0=none", 0),
        ("coalesce:rx-frames@tap0=16", 1),
        ("mtu@nic0=1400+txqueuelen@nic0=500", 2),
        ("gso_max_size@nic0=16000", 1),
        ("rps@nic0=2", 1),
        ("sysfs:gro_flush_timeout@nic0=20000", 1),
    ] {
        let changes = changes(&host, command).unwrap();
        assert!(
            count == 0 && changes.len() > 3 || changes.len() == count,
            "{command}: {changes:?}"
        );
        let before: Vec<String> = changes.iter().map(|change| value(&host, change)).collect();
        let undone = host
            .netns()
            .run(|| {
                let journal = Journal::open(directory.path()).unwrap();
                let make = |change| journal.make("try", change, None).unwrap();
                let made: Vec<_> = changes.iter().map(make).collect();
                made.iter().rev().map(|entry| journal.undo(entry).unwrap()).collect::<Vec<_>>()
            })
            .unwrap();
        assert!(undone.iter().all(|undone| *undone == Undone::Restored), "{command}: {undone:?}");
        let after: Vec<String> = changes.iter().map(|change| value(&host, change)).collect();
        assert_eq!(before, after, "{command}");
    }
}

#[test]
fn unknown_and_wrong_values_are_refused() {
    let [host, _other] = require!(hosts());
    for command in [
        "",
        "true",
        "ip route add 192.0.2.0/24 dev nic0",
        "ip link set nic0 mtu 1400 && true",
        "ip link set nic0 master br0",
        "ethtool -k nic0",
        "ethtool -X nic0 equal 2",
        "echo 3 > /tmp/x",
        "echo 3 > /sys/../tmp/x",
        "sysctl net.ipv4.ip_forward",
        "nsenter --target 1 ip link set nic0 mtu 1400",
    ] {
        let refused = changes(&host, command).unwrap_err();
        assert!(matches!(refused, ProposalError::Unknown(_)), "{command}: {refused:?}");
    }
    for (command, named) in [
        ("ip link set nic1 mtu 1400", "nic1"),
        ("ip link set nic0 mtu 1e3", "1e3"),
        ("ethtool -K nic0 gro maybe", "on or off"),
        ("ethtool -K nic0 no-such-feature on", "no-such-feature"),
        ("ethtool -K nic0 gro", "no value"),
        ("ip link set nic0 mtu 1500", "mtu of nic0 is 1500"),
        ("sysctl -w net..x=1", "net..x"),
        ("ring=4096", "no device named; use ring@DEVICE=4096"),
        ("mtu@nic1=1400", "nic1"),
        ("mtu@nic0=1400,1500", "one value"),
        ("sysctl:net.no.such_key=1", "net/no/such_key"),
    ] {
        let refused = changes(&host, command).unwrap_err().to_string();
        assert!(refused.contains(named), "{command}: {refused}");
    }
}

#[test]
fn a_trial_is_alone_and_leaves_nothing() {
    let [host, _other] = require!(hosts());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mtu = || host.netlink().link(NIC).unwrap().mtu;
    let changes = changes(&host, "ip link set nic0 mtu 1400").unwrap();
    let _inside = host.netns().enter().unwrap();
    let mut trial = Trial::begin(path, "try", changes.clone()).unwrap();
    let second = Trial::begin(path, "try", changes.clone());
    assert!(matches!(second, Err(JournalError::Busy(_))), "{second:?}");
    trial.make().unwrap();
    assert_eq!(mtu(), 1400);
    // While the process lives, no other process may repair its change.
    assert!(Journal::open(path).unwrap().overdue().unwrap().is_empty());
    assert_eq!(Journal::open(path).unwrap().entries().unwrap().len(), 1);
    drop(trial);
    assert_eq!(mtu(), 1500);
    assert!(Journal::open(path).unwrap().entries().unwrap().is_empty());

    let kept = Trial::begin(path, "try", changes).unwrap().keep().unwrap();
    assert_eq!((mtu(), kept.len()), (1400, 1));
    let journal = Journal::open(path).unwrap();
    assert!(journal.overdue().unwrap().is_empty());
    let entry = journal.entries().unwrap().remove(0);
    assert!(!entry.trial);
    assert_eq!(journal.undo(&entry).unwrap(), Undone::Restored);
    assert_eq!(mtu(), 1500);
}

#[test]
fn a_command_is_taken_back_by_the_one_given_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(&directory.path().join("journal")).unwrap();
    let file = directory.path().join("made");
    let name = file.display();
    let touch = Change::command_with_inverse(&format!("touch {name}"), &format!("rm {name}"));
    let touch = touch.unwrap();
    let entry = journal.make("try", &touch, None).unwrap();
    assert!(file.exists());
    assert_eq!(journal.undo(&entry).unwrap(), Undone::Restored);
    assert!(!file.exists() && journal.entries().unwrap().is_empty());

    // If an inverse fails, the entry stays.
    let entry = journal.make("try", &touch, None).unwrap();
    std::fs::remove_file(&file).unwrap();
    let error = journal.undo(&entry).unwrap_err().to_string();
    // The message of `rm` is in the user's language.
    let said = format!("rm {name}: exit status: 1: rm: ");
    assert!(error.contains(&said) && !error.ends_with(&said), "{error}");
    assert_eq!(journal.entries().unwrap(), [entry]);

    // A command that fails is undone at once, even if it did a part of its work.
    let half = format!("touch {name}; exit 3");
    let half = Change::command_with_inverse(&half, &format!("rm -f {name}")).unwrap();
    let error = journal.make("try", &half, None).unwrap_err().to_string();
    assert!(error.contains("exit status: 3"), "{error}");
    assert!(!file.exists());
    assert_eq!(journal.entries().unwrap().len(), 1);
}
