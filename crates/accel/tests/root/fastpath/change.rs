//! Changes the kernel's state during a stream of datagrams, and finds the last one that left as
//! before.

use std::io::{IoSliceMut, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use accel::{Accel, Wanted};
use netstate::route::Route;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use packet::ethernet::MacAddr;
use test_support::Stop;
use testbed::{Host, NIC, Offload, Wire, mac};

use super::pair::{BRIDGE, DEVICE, LIMIT, Pair, TENANT_B};
use super::underlay::Underlay;

/// Datagrams' destination port.
const PORT: u16 = 5404;
/// MAC address of [`Underlay::nobody`], the new destination after a change.
const ELSEWHERE_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 99]);
/// Interval between datagrams.
const GAP: Duration = Duration::from_micros(100);
/// After this time without a datagram on the old path, none will follow.
const QUIET: Duration = Duration::from_millis(200);

/// How tenants' packets reach the VXLAN device, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Bridged,
    /// Bridged, over IPv6.
    Bridged6,
    Routed,
    /// Bridged, in a namespace of their own.
    Sandboxed,
}

/// A kind of change in the sending host.
pub struct Change {
    pub name: &'static str,
    /// The testbed.
    pub shape: Shape,
    /// Prepares the change, so that it only remains to trigger it.
    prepare: fn(&Pair) -> Ready,
    /// Whether a frame on the wire left as it did before.
    old: fn(&[u8]) -> bool,
}

/// Time for which datagrams left as before.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Time from the start of the change to the last such datagram; zero: none.
    pub last: Duration,
    /// Duration of the call, by the kernel or the program that makes it.
    pub call: Duration,
}

/// A prepared change.
enum Ready {
    Call(fn(&Pair)),
    /// A program that waits for its input.
    Program(Child, &'static str),
}

impl Ready {
    fn program(host: &Host, program: &[&str], input: &'static str) -> Ready {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).stdin(Stdio::piped());
        Ready::Program(host.netns().run(|| command.spawn()).unwrap().unwrap(), input)
    }

    fn make(self, pair: &Pair) {
        match self {
            Ready::Call(change) => change(pair),
            Ready::Program(mut child, input) => {
                child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
                assert!(child.wait().unwrap().success(), "{input}");
            }
        }
    }
}

impl Shape {
    fn underlay(self) -> Underlay {
        if self == Shape::Bridged6 { Underlay::V6 } else { Underlay::V4 }
    }
}

/// Outer destination over IPv6.
fn is_to_b6(frame: &[u8]) -> bool {
    matches!(Underlay::V6.addresses()[1], IpAddr::V6(b) if frame[38..54] == b.octets())
}

/// Every kind of change.
pub const CHANGES: &[Change] = &[
    Change {
        name: "FDB entry moved",
        shape: Shape::Bridged,
        prepare: |_| {
            Ready::Call(|pair| {
                let moved = mac("tenant-b", "eth0");
                pair.a.netlink().add_vxlan_fdb(DEVICE, moved, Underlay::V4.nobody()).unwrap();
            })
        },
        old: |frame| frame[30..34] == Wire::B.octets(),
    },
    Change {
        name: "neighbour changed",
        shape: Shape::Bridged,
        prepare: |_| {
            Ready::Call(|pair| {
                pair.a.netlink().add_neighbour(NIC, Wire::B.into(), ELSEWHERE_MAC).unwrap();
            })
        },
        old: |frame| frame[..6] == mac("b", NIC).0,
    },
    Change {
        name: "route changed",
        shape: Shape::Bridged,
        prepare: |_| {
            Ready::Call(|pair| {
                let route = Route {
                    to: Wire::B.into(),
                    prefix: 32,
                    via: Some(Underlay::V4.nobody()),
                    link: NIC,
                    onlink: false,
                };
                pair.a.netlink().add_route(&route).unwrap();
            })
        },
        old: |frame| frame[..6] == mac("b", NIC).0,
    },
    Change {
        name: "VXLAN device down",
        shape: Shape::Bridged,
        prepare: |_| Ready::Call(|pair| pair.a.netlink().set_down(DEVICE).unwrap()),
        old: |_| true,
    },
    Change {
        name: "address removed",
        shape: Shape::Bridged,
        prepare: |pair| {
            Ready::program(&pair.a, &["ip", "-batch", "-"], "address del 10.0.0.1/24 dev nic0\n")
        },
        old: |_| true,
    },
    Change {
        name: "nftables rule added",
        shape: Shape::Bridged,
        prepare: |pair| {
            Ready::program(
                &pair.a,
                &["nft", "-f", "-"],
                "table bridge t { chain c { type filter hook forward priority 0; drop; }; }\n",
            )
        },
        old: |_| true,
    },
    Change {
        name: "IPv6: FDB entry moved",
        shape: Shape::Bridged6,
        prepare: |_| {
            Ready::Call(|pair| {
                let moved = mac("tenant-b", "eth0");
                pair.a.netlink().add_vxlan_fdb(DEVICE, moved, Underlay::V6.nobody()).unwrap();
            })
        },
        old: is_to_b6,
    },
    Change {
        name: "IPv6: neighbour changed",
        shape: Shape::Bridged6,
        prepare: |_| {
            Ready::Call(|pair| {
                let [_, b] = Underlay::V6.addresses();
                pair.a.netlink().add_neighbour(NIC, b, ELSEWHERE_MAC).unwrap();
            })
        },
        old: |frame| frame[..6] == mac("b", NIC).0,
    },
    Change {
        name: "IPv6: route changed",
        shape: Shape::Bridged6,
        prepare: |_| {
            Ready::Call(|pair| {
                let route = Route {
                    to: Underlay::V6.addresses()[1],
                    prefix: 128,
                    via: Some(Underlay::V6.nobody()),
                    link: NIC,
                    onlink: false,
                };
                pair.a.netlink().add_route(&route).unwrap();
            })
        },
        old: |frame| frame[..6] == mac("b", NIC).0,
    },
    Change {
        name: "IPv6: address removed",
        shape: Shape::Bridged6,
        prepare: |pair| {
            Ready::program(&pair.a, &["ip", "-batch", "-"], "address del fd07::1/64 dev nic0\n")
        },
        old: |_| true,
    },
    Change {
        name: "IPv6: routing rule added",
        shape: Shape::Bridged6,
        prepare: |pair| {
            Ready::program(
                &pair.a,
                &["ip", "-6", "-batch", "-"],
                "rule add to fd07::2 prio 1 unreachable\n",
            )
        },
        old: |_| true,
    },
    Change {
        name: "routed: route changed",
        shape: Shape::Routed,
        prepare: |pair| {
            Ready::program(
                &pair.a,
                &["ip", "-batch", "-"],
                "route replace unreachable 10.1.0.12/32\n",
            )
        },
        old: |_| true,
    },
    Change {
        name: "routed: neighbour changed",
        shape: Shape::Routed,
        prepare: |_| {
            Ready::Call(|pair| {
                let gateway = [10, 1, 12, 0].into();
                pair.a.netlink().add_neighbour(DEVICE, gateway, ELSEWHERE_MAC).unwrap();
            })
        },
        old: |frame| frame[50..56] == mac("b", DEVICE).0,
    },
    Change {
        name: "routed: FDB entry moved",
        shape: Shape::Routed,
        prepare: |_| {
            Ready::Call(|pair| {
                let moved = mac("b", DEVICE);
                pair.a.netlink().add_vxlan_fdb(DEVICE, moved, Underlay::V4.nobody()).unwrap();
            })
        },
        old: |frame| frame[30..34] == Wire::B.octets(),
    },
    Change {
        name: "routed: device down",
        shape: Shape::Routed,
        prepare: |_| Ready::Call(|pair| pair.a.netlink().set_down(DEVICE).unwrap()),
        old: |_| true,
    },
    Change {
        name: "routed: bridge down",
        shape: Shape::Routed,
        prepare: |_| Ready::Call(|pair| pair.a.netlink().set_down(BRIDGE).unwrap()),
        old: |_| true,
    },
    Change {
        name: "routed: forwarding off",
        shape: Shape::Routed,
        prepare: |_| Ready::Call(|pair| pair.a.sysctl("net/ipv4/ip_forward", "0").unwrap()),
        old: |_| true,
    },
    Change {
        name: "routed: IPsec policy added",
        shape: Shape::Routed,
        prepare: |pair| {
            Ready::program(
                &pair.a,
                &["ip", "-batch", "-"],
                "xfrm policy add dir fwd src 10.1.0.0/16 dst 10.1.0.0/16 action block\n",
            )
        },
        old: |_| true,
    },
    Change {
        name: "routed: nftables rule added",
        shape: Shape::Routed,
        prepare: |pair| {
            Ready::program(
                &pair.a,
                &["nft", "-f", "-"],
                "table ip t { chain c { type filter hook forward priority 0; policy drop; }; }\n",
            )
        },
        old: |_| true,
    },
    Change {
        name: "sandbox: FDB entry moved",
        shape: Shape::Sandboxed,
        prepare: |_| {
            Ready::Call(|pair| {
                let moved = mac("tenant-b", "eth0");
                let sandbox = pair.sandbox_a().netlink();
                sandbox.add_vxlan_fdb(DEVICE, moved, Underlay::V4.nobody()).unwrap();
            })
        },
        old: |frame| frame[30..34] == Wire::B.octets(),
    },
    Change {
        name: "sandbox: bridge down",
        shape: Shape::Sandboxed,
        prepare: |_| Ready::Call(|pair| pair.sandbox_a().netlink().set_down(BRIDGE).unwrap()),
        old: |_| true,
    },
    Change {
        name: "sandbox: rule in it",
        shape: Shape::Sandboxed,
        prepare: |pair| {
            Ready::program(
                pair.sandbox_a(),
                &["nft", "-f", "-"],
                "table bridge t { chain c { type filter hook forward priority 0; drop; }; }\n",
            )
        },
        old: |_| true,
    },
    Change {
        name: "sandbox: rule in the host",
        shape: Shape::Sandboxed,
        prepare: |pair| {
            Ready::program(
                &pair.a,
                &["nft", "-f", "-"],
                "table ip t { chain c { type filter hook output priority 0; drop; }; }\n",
            )
        },
        old: |_| true,
    },
    Change {
        name: "sandbox: host's neighbour",
        shape: Shape::Sandboxed,
        prepare: |_| {
            Ready::Call(|pair| {
                pair.a.netlink().add_neighbour(NIC, Wire::B.into(), ELSEWHERE_MAC).unwrap();
            })
        },
        old: |frame| frame[..6] == mac("b", NIC).0,
    },
];

impl Change {
    /// Makes the change while datagrams are sent.
    pub fn window(&self) -> Window {
        let underlay = self.shape.underlay();
        let pair = match self.shape {
            Shape::Bridged | Shape::Bridged6 => Pair::over(underlay, Offload::Full, true),
            Shape::Routed => Pair::routed(Offload::Full, true, true),
            Shape::Sandboxed => Pair::sandboxed(Offload::Full, true),
        };
        // The new destination is a known neighbour before the change.
        pair.a.netlink().add_neighbour(NIC, underlay.nobody(), ELSEWHERE_MAC).unwrap();
        let accel = Accel::start(pair.a.netns(), Wanted::All).unwrap();
        pair.settle_sender(&accel);
        let ready = (self.prepare)(&pair);

        let open = || {
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll)
                .unwrap()
        };
        let tap = pair.b.netns().run(open).unwrap();
        setsockopt(&tap, sockopt::ReceiveTimeout, &TimeVal::milliseconds(20)).unwrap();
        setsockopt(&tap, sockopt::ReceiveTimestampns, &true).unwrap();
        setsockopt(&tap, sockopt::RcvBufForce, &(8 << 20)).unwrap();
        let sender = pair.tenant_a.netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // Without a route, sending may fail.
                    let _ = sender.send_to(&[0; 64], (IpAddr::from(TENANT_B), PORT));
                    std::thread::sleep(GAP);
                }
            });
            let ended = Stop(&stop);
            let mut frames = Frames { tap: &tap, underlay, buffer: vec![0; 70_000] };
            let before = accel.status().packets("encap_hit");
            testbed::poll("datagrams by the fast path", LIMIT, || {
                let old = frames.next().is_some_and(|(_, frame)| (self.old)(frame));
                let taken = accel.status().packets("encap_hit") > before + 100;
                Ok(if old && taken { Ok(()) } else { Err(format!("{:#?}", accel.status())) })
            })
            .unwrap();

            let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let call = Instant::now();
            ready.make(&pair);
            let call = call.elapsed();
            let (end, mut last) = (Instant::now() + LIMIT, Duration::ZERO);
            let mut quiet = Instant::now();
            while quiet.elapsed() < QUIET {
                assert!(Instant::now() < end, "{}: datagrams still leave as before", self.name);
                if let Some((at, frame)) = frames.next()
                    && (self.old)(frame)
                {
                    let after = at.saturating_sub(began);
                    // Frames captured before the change are read after it.
                    if after > last {
                        (last, quiet) = (after, Instant::now());
                    }
                }
            }
            drop(ended);
            Window { last, call }
        })
    }
}

struct Frames<'a, T: AsRawFd> {
    tap: &'a T,
    underlay: Underlay,
    buffer: Vec<u8>,
}

impl<T: AsRawFd> Frames<'_, T> {
    /// The next VXLAN datagram of this test and its reception time since the epoch; `None` for
    /// another frame, or if none arrives.
    fn next(&mut self) -> Option<(Duration, &[u8])> {
        let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let (length, at) = {
            let mut buffers = [IoSliceMut::new(&mut self.buffer)];
            let fd = self.tap.as_raw_fd();
            let message =
                recvmsg::<()>(fd, &mut buffers, Some(&mut control), MsgFlags::empty()).ok()?;
            let at = message.cmsgs().ok()?.find_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
                _ => None,
            })?;
            (message.bytes, at)
        };
        let frame = &self.buffer[..length];
        let inner = self.underlay.inner(frame)?;
        let word = |at: usize| frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
        let ours = word(inner + 12) == Some(0x0800) && word(inner + 14 + 22) == Some(PORT);
        ours.then_some((at, frame))
    }
}
