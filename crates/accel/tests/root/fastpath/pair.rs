//! Two test hosts with a bridged or routed VXLAN device each, and a tenant behind each.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use accel::{Accel, Status, Wanted};
use packet::ethernet::MacAddr;
use test_support::bound;
use testbed::{Host, NIC, Offload, mac, poll};

use super::sandbox::Sandbox;
use super::underlay::Underlay;

pub const LIMIT: Duration = Duration::from_secs(20);
pub const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 11);
pub const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 12);
pub const DEVICE: &str = "vxlan0";
pub const BRIDGE: &str = "br0";
pub const PORT: &str = "veth0";

/// Runs a shell script in a host; every command must succeed.
pub fn sh(host: &Host, script: &str) {
    host.run(Command::new("sh").args(["-ec", script])).unwrap();
}

/// Runs lines of `bridge` in a host.
pub fn bridge(host: &Host, lines: &str) {
    let mut command = Command::new("bridge");
    command.args(["-batch", "-"]).stdin(Stdio::piped());
    let mut child = host.netns().run(|| command.spawn()).unwrap().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{lines}");
}

/// The line for an address behind a remote VTEP.
pub fn entry(verb: &str, number: usize, remote: &str) -> String {
    format!("fdb {verb} {} dev {DEVICE} dst {remote} self permanent\n", address(number))
}

/// One of many addresses.
pub fn address(number: usize) -> MacAddr {
    let [_, _, _, _, b, c, d, e] = number.to_be_bytes();
    MacAddr([2, 0x66, b, c, d, e])
}

pub struct Pair {
    pub a: Host,
    pub b: Host,
    pub tenant_a: Host,
    pub tenant_b: Host,
    /// Namespaces of bridges and VXLAN devices, if they are not in `a` and `b`.
    pub sandboxes: Option<[Sandbox; 2]>,
}

impl Pair {
    /// With outer checksums or without.
    pub fn new(offload: Offload, udp_csum: bool) -> Pair {
        Pair::over(Underlay::V4, offload, udp_csum)
    }

    /// The same over a given underlay.
    pub fn over(underlay: Underlay, offload: Offload, udp_csum: bool) -> Pair {
        let pair = Pair {
            a: Host::new("a").unwrap(),
            b: Host::new("b").unwrap(),
            tenant_a: Host::with_ipv6("tenant-a").unwrap(),
            tenant_b: Host::with_ipv6("tenant-b").unwrap(),
            sandboxes: None,
        };
        let mtu = underlay.mtu();
        underlay.join(&pair.a, &pair.b, offload, false);
        pair.a.connect(PORT, &pair.tenant_a, "eth0", mtu).unwrap();
        pair.b.connect(PORT, &pair.tenant_b, "eth0", mtu).unwrap();
        for (tenant, address, six) in
            [(&pair.tenant_a, TENANT_A, "fd00::11"), (&pair.tenant_b, TENANT_B, "fd00::12")]
        {
            tenant.address("eth0", address, 24).unwrap();
            tenant.address("eth0", six.parse::<IpAddr>().unwrap(), 64).unwrap();
        }
        let [a, b] = underlay.addresses();
        for (host, local, remote) in [(&pair.a, a, b), (&pair.b, b, a)] {
            sh(
                host,
                &format!(
                    "ip link add {DEVICE} address {} type vxlan id 42 local {local} \
                        remote {remote} dev {NIC} dstport 4789 learning {}
                     ip link set {DEVICE} mtu {mtu} up",
                    mac(host.name(), DEVICE),
                    underlay.options(udp_csum)
                ),
            );
            host.bridge(BRIDGE, mtu, &[DEVICE, PORT]).unwrap();
        }
        pair
    }

    /// The same addresses, routed: a host's neighbour is the other host's VXLAN device, with a
    /// static FDB entry. Tenants are behind bridges or alone on their veth pairs.
    pub fn routed(offload: Offload, udp_csum: bool, bridge: bool) -> Pair {
        Pair::routed_over(Underlay::V4, offload, udp_csum, bridge)
    }

    /// The same over a given underlay.
    pub fn routed_over(underlay: Underlay, offload: Offload, udp_csum: bool, bridge: bool) -> Pair {
        let host = |name| Host::with_ipv6(name).unwrap();
        let pair = Pair {
            a: host("a"),
            b: host("b"),
            tenant_a: host("tenant-a"),
            tenant_b: host("tenant-b"),
            sandboxes: None,
        };
        let mtu = underlay.mtu();
        underlay.join(&pair.a, &pair.b, offload, true);
        let checksum = underlay.options(udp_csum);
        let [a, b] = underlay.addresses();
        for (here, tenant, there, own, other, (local, remote)) in [
            (&pair.a, &pair.tenant_a, &pair.b, 11, 12, (a, b)),
            (&pair.b, &pair.tenant_b, &pair.a, 12, 11, (b, a)),
        ] {
            here.forward().unwrap();
            here.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
            here.connect(PORT, tenant, "eth0", mtu).unwrap();
            if bridge {
                here.bridge(BRIDGE, mtu, &[PORT]).unwrap();
            }
            let inner = if bridge { BRIDGE } else { PORT };
            let (here_mac, there_mac) = (mac(here.name(), DEVICE), mac(there.name(), DEVICE));
            // One route for each tenant, because the test is about the path, not about a gateway's
            // routes.
            here.run(Command::new("sh").args([
                "-ec",
                &format!(
                    "ip link add {DEVICE} address {here_mac} type vxlan id 42 local {local} \
                    dev {NIC} dstport 4789 nolearning {checksum}
                 ip link set {DEVICE} mtu {mtu} up
                 ip addr add 10.1.{own}.0/32 dev {DEVICE}
                 ip addr add fd00:{own}::/128 dev {DEVICE} nodad
                 ip addr add 10.1.0.1/32 dev {inner}
                 ip addr add fd00::1/128 dev {inner} nodad
                 ip route add 10.1.0.{own}/32 dev {inner}
                 ip route add fd00::{own}/128 dev {inner}
                 ip route add 10.1.0.{other}/32 via 10.1.{other}.0 dev {DEVICE} onlink
                 ip route add fd00::{other}/128 via fd00:{other}:: dev {DEVICE} onlink
                 ip neigh add 10.1.{other}.0 lladdr {there_mac} dev {DEVICE}
                 ip neigh add fd00:{other}:: lladdr {there_mac} dev {DEVICE}
                 bridge fdb add {there_mac} dev {DEVICE} dst {remote} self permanent"
                ),
            ]))
            .unwrap();
            tenant
                .run(Command::new("sh").args([
                    "-ec",
                    &format!(
                        "ip addr add 10.1.0.{own}/32 dev eth0
                     ip addr add fd00::{own}/128 dev eth0 nodad
                     ip route add default via 10.1.0.1 dev eth0 onlink
                     ip route add default via fd00::1 dev eth0 onlink"
                    ),
                ]))
                .unwrap();
        }
        pair
    }

    /// Waits until the addresses of both directions are learned and accelerated.
    pub fn accelerate(&self) -> [Accel; 2] {
        let start = |host: &Host| Accel::start(host.netns(), Wanted::All).unwrap();
        let both = [start(&self.a), start(&self.b)];
        self.settle(&both);
        // After traffic, links have all their addresses.
        self.settle_addresses();
        both
    }

    /// Sends until packets take the fast path in both hosts.
    pub fn settle(&self, both: &[Accel; 2]) {
        let hits = || {
            both.each_ref().map(|accel| {
                let status = accel.status();
                [
                    status.packets("encap_hit") + status.packets("encap_shortcut"),
                    status.packets("decap_hit"),
                ]
            })
        };
        let before = hits();
        poll("the fast path", LIMIT, || {
            self.ping(&[]);
            let now = hits();
            let taken = (0..2).all(|host| (0..2).all(|way| now[host][way] > before[host][way]));
            Ok(taken
                .then_some(())
                .ok_or_else(|| format!("{:#?}", both.each_ref().map(Accel::status))))
        })
        .unwrap();
    }

    /// Sends until received packets take the fast path.
    pub fn settle_receiver(&self, accel: &Accel) {
        poll("the fast path of the receiver", LIMIT, || {
            let before = accel.status();
            self.ping(&[]);
            let received = since(accel, &before, "decap_hit");
            Ok(if received >= 3 { Ok(()) } else { Err(format!("{:#?}", accel.status())) })
        })
        .unwrap();
    }

    /// Sends until the sender's packets take the fast path.
    pub fn settle_sender(&self, accel: &Accel) {
        poll("the fast path of the sender", LIMIT, || {
            let before = accel.status();
            self.ping(&[]);
            let sent = since(accel, &before, "encap_hit") + since(accel, &before, "encap_shortcut");
            Ok(if sent >= 3 { Ok(()) } else { Err(format!("{:#?}", accel.status())) })
        })
        .unwrap();
    }

    pub fn ping(&self, more: &[&str]) {
        let mut command = Command::new("ping");
        command.args(["-n", "-c", "3", "-i", "0.01", "-W", "5"]).args(more);
        self.tenant_a.run(command.arg(TENANT_B.to_string())).unwrap();
    }

    /// Waits for all IPv6 addresses: routers resolve neighbours with the link-local ones.
    fn settle_addresses(&self) {
        for host in [&self.a, &self.b, &self.tenant_a, &self.tenant_b] {
            host.settle().unwrap();
        }
    }

    /// The same over IPv6.
    pub fn ping6(&self) {
        self.settle_addresses();
        let mut command = Command::new("ping");
        command.args(["-n", "-c", "3", "-i", "0.01", "-W", "5", "fd00::12"]);
        self.tenant_a.run(&mut command).unwrap();
    }

    /// Sends `bytes` over TCP from one tenant to the other and back.
    pub fn stream(&self, to: IpAddr, bytes: usize) {
        let sent: Vec<u8> = (0..bytes).map(|at| (at / 251 + at) as u8).collect();
        let expected = sent.clone();
        let listener =
            self.tenant_b.netns().run(|| bound(|| TcpListener::bind((to, 5401)))).unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut received = vec![0; expected.len()];
            stream.read_exact(&mut received).unwrap();
            assert!(received == expected, "bytes were changed or lost");
            stream.write_all(&received).unwrap();
        });
        let connect = || TcpStream::connect_timeout(&(to, 5401).into(), LIMIT).unwrap();
        let mut stream = self.tenant_a.netns().run(connect).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&sent).unwrap();
        let mut received = vec![0; bytes];
        stream.read_exact(&mut received).unwrap();
        assert!(received == sent, "bytes were changed or lost on the way back");
        serving.join().unwrap();
    }
}

/// Packets counted under a word since an earlier status.
pub fn since(accel: &Accel, before: &Status, word: &str) -> u64 {
    accel.status().packets(word) - before.packets(word)
}
