//! A connection through a Kubernetes node's rules.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use test_support::bound;

use super::pair::{LIMIT, Pair};

/// A short form of flannel's and kube-proxy's rules: established connections, marks, comments,
/// invalid packets, and a translation that does not affect the tenants.
pub const RULES: &str = "
    iptables-nft -P FORWARD DROP
    iptables-nft -N KUBE-FORWARD
    iptables-nft -A FORWARD -m comment --comment 'kubernetes forwarding rules' -j KUBE-FORWARD
    iptables-nft -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
    iptables-nft -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
    iptables-nft -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    iptables-nft -N FLANNEL-FWD
    iptables-nft -A FORWARD -j FLANNEL-FWD
    iptables-nft -A FLANNEL-FWD -s 10.1.0.0/16 -j ACCEPT
    iptables-nft -A FLANNEL-FWD -d 10.1.0.0/16 -j ACCEPT
    iptables-nft -t nat -N FLANNEL-POSTRTG
    iptables-nft -t nat -A POSTROUTING -j FLANNEL-POSTRTG
    iptables-nft -t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN
    iptables-nft -t nat -A FLANNEL-POSTRTG -s 10.1.0.0/16 -d 10.1.0.0/16 -j RETURN
    iptables-nft -t nat -A FLANNEL-POSTRTG -s 10.1.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE
    iptables-nft -t nat -N KUBE-POSTROUTING
    iptables-nft -t nat -A POSTROUTING -j KUBE-POSTROUTING
    iptables-nft -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
    iptables-nft -t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
    iptables-nft -t nat -A KUBE-POSTROUTING -j MASQUERADE";

/// Requests and answers over one connection.
pub struct Exchange {
    pub near: TcpStream,
    pub far: TcpStream,
}

impl Exchange {
    /// Connects the first host's tenant to `to`; the server listens at `at` in the other's.
    pub fn new(pair: &Pair, to: SocketAddr, at: SocketAddr) -> Exchange {
        let listener = pair.tenant_b.netns().run(|| bound(|| TcpListener::bind(at))).unwrap();
        let connect = || TcpStream::connect_timeout(&to, LIMIT).unwrap();
        let near = pair.tenant_a.netns().run(connect).unwrap();
        let (far, _) = listener.accept().unwrap();
        for end in [&near, &far] {
            end.set_read_timeout(Some(LIMIT)).unwrap();
            end.set_nodelay(true).unwrap();
        }
        Exchange { near, far }
    }

    /// Sends `bytes` bytes there and back.
    pub fn go(&mut self, bytes: usize) {
        let sent: Vec<u8> = (0..bytes).map(|at| (at / 251 + at) as u8).collect();
        let mut received = vec![0; bytes];
        let Exchange { near, far } = self;
        std::thread::scope(|scope| {
            scope.spawn(|| near.write_all(&sent).unwrap());
            far.read_exact(&mut received).unwrap();
        });
        assert!(received == sent, "bytes were changed or lost");
        received.fill(0);
        std::thread::scope(|scope| {
            scope.spawn(|| far.write_all(&sent).unwrap());
            near.read_exact(&mut received).unwrap();
        });
        assert!(received == sent, "bytes were changed or lost on the way back");
    }
}
