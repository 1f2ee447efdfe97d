//! Reports packet sockets that the fast path bypasses.

use std::process::Command;

use accel::status::Listener;
use test_support::{need, require};
use testbed::{Host, Offload, Process, Processes, poll};

use super::pair::{BRIDGE, DEVICE, LIMIT, PORT, Pair};

/// Starts a capture. With `-p` among the options it does not make the device promiscuous.
pub(super) fn listen(
    processes: &Processes,
    host: &Host,
    device: &str,
    options: &[&str],
) -> Process {
    let mut command = Command::new("tcpdump");
    // Without -Z, tcpdump gives /dev/null to the user tcpdump.
    command.args(["-Z", "root", "-n", "-i", device, "-w", "/dev/null"]).args(options);
    processes.start(host, &mut command).unwrap()
}

#[test]
fn bypassed_packet_sockets_are_listed() {
    require!(need::root(), need::tool("tcpdump"));
    let pair = Pair::new(Offload::Full, false);
    let accels = pair.accelerate();
    let processes = Processes::new().unwrap();
    let assert_listed = |expected: &[Option<&str>]| {
        poll(&format!("{expected:?} in the status"), LIMIT, || {
            let status = accels[0].status();
            let Some(listeners) = status.listeners.clone() else { return Ok(Err("null".into())) };
            let devices: Vec<Option<&str>> =
                listeners.iter().map(|Listener { device, .. }| device.as_deref()).collect();
            Ok(if devices == expected { Ok(()) } else { Err(format!("{listeners:?}")) })
        })
        .unwrap();
    };
    assert_listed(&[]);
    for (device, expected) in
        [("any", None), (BRIDGE, Some(BRIDGE)), (DEVICE, Some(DEVICE)), (PORT, Some(PORT))]
    {
        let process = listen(&processes, &pair.a, device, &["-p"]);
        assert_listed(&[expected]);
        drop(process);
        assert_listed(&[]);
    }
    // Both paths show packets at the NIC, and other hosts do not matter.
    let _nic = listen(&processes, &pair.a, "nic0", &["-p"]);
    let _other = listen(&processes, &pair.b, "any", &["-p"]);
    let _port = listen(&processes, &pair.a, PORT, &["-p"]);
    assert_listed(&[Some(PORT)]);
}
