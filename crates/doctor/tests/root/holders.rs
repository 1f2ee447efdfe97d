//! Programs that hold TAP devices, found by the devices' names.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use doctor::{Scope, collect};
use test_support::{need, require};
use testbed::Host;

/// Holds the device until its input ends.
const HOLD: &str = "import fcntl, struct, sys
tap = open('/dev/net/tun', 'r+b', buffering=0)
fcntl.ioctl(tap, 0x400454ca, struct.pack('16sH22x', b'tap7', 0x1002))
print('held', flush=True)
sys.stdin.read()";

/// A descriptor has the device's name and not its namespace: two hosts may have devices of one name.
#[test]
fn a_program_holds_the_device_of_its_own_namespace() {
    require!(need::root(), need::tools(&["ip", "python3"]));
    let [one, other] = ["one", "other"].map(|name| Host::new(name).unwrap());
    for host in [&one, &other] {
        host.run(Command::new("ip").args(["tuntap", "add", "tap7", "mode", "tap"])).unwrap();
    }
    let start = || {
        let mut python = Command::new("python3");
        python.args(["-c", HOLD]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    };
    let mut program = other.netns().run(start).unwrap().unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    let holds = |host: &Host| {
        let scope = Scope::Some(vec![("here".to_owned(), host.netns().try_clone().unwrap())]);
        let read = collect(scope, Duration::ZERO).unwrap();
        read.namespaces[0].holders.iter().any(|holder| holder.pid == program.id())
    };
    let found = [&one, &other].map(holds);
    drop(program.stdin.take());
    program.wait().unwrap();
    assert_eq!(found, [false, true]);
}
