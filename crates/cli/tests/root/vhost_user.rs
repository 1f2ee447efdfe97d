//! `overlane tapbridge` with a QEMU guest over vhost-user: traffic, restarts of the guest, and its
//! status. The guest boots a stock Debian kernel, in software emulation.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use foreground::{Foreground, OVERLANE, path};
use nix::sys::signal::Signal;
use test_support::{need, require};
use testbed::Host;

use crate::foreground;
use crate::qemu;

use qemu::Guest;

/// The program of a guest: 4 MiB to the server and back, by TCP; pings; then it ends.
const SCRIPT: &str = "
set -e
b=/bin/busybox
modprobe virtio_pci
modprobe virtio_net
device=$($b ls /sys/class/net | $b grep -v lo)
$b ip link set $device up
$b ip addr add 10.9.0.2/24 dev $device
$b ping -c 3 -W 5 10.9.0.1
$b ping -c 2 -W 5 -s 1400 10.9.0.1
$b dd if=/dev/urandom of=/tmp/sent bs=64k count=64 2>/dev/null
$b nc 10.9.0.1 5001 </tmp/sent
$b nc 10.9.0.1 5002 </dev/null >/tmp/received
$b cmp /tmp/sent /tmp/received
$b cat /sys/class/net/$device/device/features
";

fn found() -> Result<Guest, String> {
    need::tun()?;
    Guest::find()
}

/// Serves in that host: receives bytes until the end, then sends them back to the next client.
fn serve(host: &Host) -> JoinHandle<usize> {
    let listen = |port| TcpListener::bind(("10.9.0.1", port)).unwrap();
    let [take, give] = host.netns().run(|| [5001, 5002].map(listen)).unwrap();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let (mut client, _) = take.accept().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        client.read_to_end(&mut bytes).unwrap();
        drop(client);
        let (mut client, _) = give.accept().unwrap();
        client.write_all(&bytes).unwrap();
        bytes.len()
    })
}

fn run(socket: &Path) -> qemu::Output {
    let guest = found().unwrap().with_shared_memory().within(Duration::from_secs(300));
    // QEMU 7.2 without KVM crashes with MSI-X here: kvm_virtio_pci_irqfd_use.
    let devices = format!(
        "-chardev socket,id=port,path={} -netdev vhost-user,id=net,chardev=port \
         -device virtio-net-pci,netdev=net,mac=52:54:00:00:00:02,romfile=,vectors=0",
        socket.display()
    );
    // It starts the guest's shell.
    guest.with_devices(&devices).run(Path::new("/usr/bin/env"), &["sh", "-c", SCRIPT])
}

/// Reads lines up to one that contains `said`.
fn expect(program: &mut Foreground, said: &str) -> String {
    loop {
        let line = program.line();
        if line.contains(said) {
            return line;
        }
    }
}

#[test]
fn a_guest_exchanges_traffic_with_a_tap() {
    exchanges(1);
}

#[test]
fn guests_come_and_go_at_one_socket() {
    exchanges(3);
}

/// Starts a guest that often, one after the other at the same socket.
fn exchanges(boots: usize) {
    require!(found());
    let host = Host::new("host").unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let socket = directory.path().join("guest.sock");
    let mut command = Command::new(OVERLANE);
    command.args(["tapbridge", "--left", &format!("vhost-user:{}", socket.display())]);
    command.args(["--right", "tap0:10.9.0.1/24", "--right-netns", &path(&host)]);
    let (mut program, ready) = Foreground::start(&host, command, None);
    assert!(ready.contains("guest.sock and tap0 are joined, engine epoll"), "{ready}");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    // Besides the main thread, the bridge's and the client's.
    program.expect_no_rights(3);
    for _boot in 0..boots {
        let served = serve(&host);
        let output = std::thread::scope(|scope| {
            let guest = scope.spawn(|| run(&socket));
            expect(&mut program, "a client has connected");
            guest.join().unwrap()
        });
        assert_eq!(output.status, Some(0), "{output:#?}");
        assert_eq!(served.join().unwrap(), 4 << 20);
        // Bit 15, from the left: mergeable buffers. Bits 7 and 11: TSO in both directions.
        let features = output.stdout.trim().lines().last().unwrap();
        for bit in [0, 1, 7, 8, 11, 12, 15, 29, 32] {
            assert_eq!(features.as_bytes()[bit], b'1', "{bit}: {features}");
        }
        expect(&mut program, "the client has disconnected");
    }
    program.signal(Signal::SIGUSR1);
    let line = expect(&mut program, ": waiting; 0 of 1 queues");
    assert!(line.ends_with("features: none"), "{line}");
    program.signal(Signal::SIGTERM);
    for _direction in 0..2 {
        let line = program.line();
        assert!(line.contains("; forwarded ") && !line.contains("received 0 "), "{line}");
        assert!(!line.contains("malformed") && !line.contains("refused"), "{line}");
        // Both ends accept GSO packets.
        assert!(!line.contains("cut"), "{line}");
    }
    assert_eq!(program.end(), Some(0));
}
