//! The faults, by check.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::bench::{Bench, LIMIT, Made, OWN, PEER, TUNNELLED, run};

/// A fault that can be made in a guest.
pub struct Fault {
    /// The check that must find it.
    pub code: &'static str,
    /// Other checks that see it, too.
    pub also: &'static [&'static str],
    /// Time between the two readings: a CPU's time is counted in ticks, and reading
    /// takes some of it.
    pub interval: Duration,
    /// Makes it; dropping the result undoes it.
    pub make: fn(&Bench) -> Made,
}

const fn fault(
    code: &'static str,
    also: &'static [&'static str],
    make: fn(&Bench) -> Made,
) -> Fault {
    Fault { code, also, interval: Duration::from_millis(600), make }
}

/// A fault that is found by shares of counters or of a CPU's time.
const fn shares(
    code: &'static str,
    also: &'static [&'static str],
    make: fn(&Bench) -> Made,
) -> Fault {
    Fault { interval: Duration::from_millis(2500), ..fault(code, also, make) }
}

const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";
const CONNTRACK: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Slow enough that each packet interrupts.
const PACED: Duration = Duration::from_millis(1);

/// A loop of two bridges, in which a broadcast circulates forever in the softirqs of CPU 1.
fn storm(_: &Bench) -> Made {
    let made = Made::nothing().by("ip netns add loop", "ip netns del loop");
    // IPv6 and snooping send packets that would circulate on CPU 0.
    for which in ["all", "default"] {
        run(&format!("ip netns exec loop busybox sysctl -w net.ipv6.conf.{which}.disable_ipv6=1"));
    }
    for line in [
        "link add br0 type bridge mcast_snooping 0",
        "link add br1 type bridge mcast_snooping 0",
        "link add p0 type veth peer name q0",
        "link add p1 type veth peer name q1",
        "link set dev p0 master br0",
        "link set dev p1 master br0",
        "link set dev q0 master br1",
        "link set dev q1 master br1",
        "address add 198.51.100.1/24 broadcast 198.51.100.255 dev br0",
        "link set dev br0 up",
        "link set dev br1 up",
        "link set dev p0 up",
        "link set dev q0 up",
        "link set dev p1 up",
        "link set dev q1 up",
    ] {
        run(&format!("ip -n loop {line}"));
    }
    let loop_ = sys::netns::NetNs::open("/run/netns/loop".as_ref()).unwrap();
    let seed = move || {
        sys::affinity::pin(1).unwrap();
        let entered = loop_.enter().unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_broadcast(true).unwrap();
        let _ = socket.send_to(b"overlay", "198.51.100.255:9");
        drop(entered);
    };
    let count = || run("ip -n loop -s link show dev p0");
    testbed::poll("a packet that goes round", LIMIT, || {
        std::thread::scope(|scope| scope.spawn(&seed).join().unwrap());
        let before = count();
        std::thread::sleep(Duration::from_millis(20));
        let after = count();
        Ok(if before == after { Err(after) } else { Ok(()) })
    })
    .unwrap();
    made
}

/// A veth pair whose packets CPU 0 moves to CPU 1's backlog.
fn steered(bench: &Bench) -> Made {
    let made = Made::nothing().by("ip link add s0 type veth peer name s1", "ip link del s0");
    for line in ["link set dev s0 up", "link set dev s1 up", "address add 198.51.100.1/24 dev s0"] {
        run(&format!("ip {line}"));
    }
    run("ip neighbour add 198.51.100.2 dev s0 lladdr 02:00:00:00:00:77");
    std::fs::write("/sys/class/net/s1/queues/rx-0/rps_cpus", "2").unwrap();
    made.datagrams(&bench.own, (0, 1), (Ipv4Addr::new(198, 51, 100, 2), 9), Duration::ZERO)
}

/// All of `nic0`'s queues interrupt CPU 0.
fn on_one_cpu(bench: &Bench) -> Made {
    let files = bench.interrupt_files("nic0");
    bench.interrupts("nic0", "0");
    Made::nothing().and(move || {
        for (cpu, file) in files.iter().enumerate() {
            std::fs::write(file, cpu.to_string()).unwrap();
        }
    })
}

/// Entries of the connection table, created by a rule.
fn tracked() -> Made {
    let made = Made::nothing();
    let rules = "table ip t { chain c { type filter hook output priority 0; ct state new; }; }";
    let nft = Command::new("nft").arg(rules).status().unwrap();
    assert!(nft.success());
    let made = made.and(|| drop(run("nft delete table ip t")));
    for _ in 0..20 {
        UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"overlay", (PEER, 9)).unwrap();
    }
    made
}

/// Open vSwitch in the guest's first namespace, with a bridge whose port is `o0`.
fn open_vswitch(datapath: &str) -> Made {
    const RUN: &str = "/run/ovs";
    std::fs::create_dir_all(RUN).unwrap();
    let _ = std::fs::remove_file("/run/ovs/conf.db");
    run("ovsdb-tool create /run/ovs/conf.db /usr/share/openvswitch/vswitch.ovsschema");
    let start = |program: &str, arguments: &str| {
        let mut command = Command::new(program);
        command.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, RUN);
        }
        command.spawn().unwrap()
    };
    let end = |mut program: std::process::Child| {
        move || {
            program.kill().unwrap();
            program.wait().unwrap();
        }
    };
    let server = start(
        "ovsdb-server",
        "/run/ovs/conf.db --remote=punix:/run/ovs/db.sock --unixctl=/run/ovs/db.ctl",
    );
    let made = Made::nothing().and(end(server));
    let order = |words: &str| {
        let line = format!("--db=unix:/run/ovs/db.sock --timeout=20 {words}");
        Command::new("ovs-vsctl").args(line.split(' ')).output().unwrap()
    };
    testbed::poll("ovsdb-server", LIMIT, || {
        let output = order("--no-wait init");
        Ok(if output.status.success() { Ok(()) } else { Err(format!("{output:?}")) })
    })
    .unwrap();
    // Before that, Open vSwitch 3.1.0 starts no thread for the kernel's datapath.
    testbed::poll("the guest's first 10 s", LIMIT, || {
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
        Ok(if seconds > 11.0 { Ok(()) } else { Err(text) })
    })
    .unwrap();
    let daemon = start("ovs-vswitchd", "unix:/run/ovs/db.sock --unixctl=/run/ovs/v.ctl");
    let made = made.and(end(daemon));
    let made = made.by("ip link add o0 type veth peer name o1", "ip link del o0");
    for line in ["link set dev o0 up", "link set dev o1 up", "address add 203.0.113.1/24 dev o1"] {
        run(&format!("ip {line}"));
    }
    let output = order(&format!(
        "add-br ovs0 -- set bridge ovs0 datapath_type={datapath} -- add-port ovs0 o0"
    ));
    assert!(output.status.success(), "{output:?}");
    made.and(move || drop(order("del-br ovs0")))
}

/// A bridge with VLAN filtering: `p0` is a member of no VLAN, `p1` has no PVID, `p2` leaves its
/// frames tagged, `p3` is in a VLAN without the tunnel, and `p4` is as it should be.
fn filtered_vlans(_: &Bench) -> Made {
    let made = Made::nothing()
        .by("ip netns add vlans", "ip netns del vlans")
        .by("ip link add br100 type bridge vlan_filtering 1", "ip link del br100");
    let tunnel = format!("vx100 type vxlan id 100 dstport 4789 local {OWN} remote {PEER} dev nic0");
    let made = made.by(&format!("ip link add {tunnel}"), "ip link del vx100");
    run("ip link set dev vx100 master br100");
    for number in 0..5 {
        run(&format!("ip link add p{number} mtu 1450 type veth peer name t{number} netns vlans"));
        run(&format!("ip -n vlans link set dev t{number} mtu 1450"));
        run(&format!("ip link set dev p{number} master br100"));
        run(&format!("ip link set dev p{number} up"));
        run(&format!("ip -n vlans link set dev t{number} up"));
    }
    for line in [
        "vlan del dev p0 vid 1",
        "vlan add dev p1 vid 1 untagged",
        "vlan add dev p2 vid 1 pvid",
        "vlan del dev p3 vid 1",
        "vlan add dev p3 vid 20 pvid untagged",
    ] {
        run(&format!("bridge {line}"));
    }
    run("ip link set dev vx100 up");
    run("ip link set dev br100 up");
    made
}

/// Policers of `p0`, whose burst is less than a packet, of `p1`, which has no traffic, and of `p2`,
/// whose burst the proposed command has raised.
fn policed(_: &Bench) -> Made {
    // Otherwise a host with a tunnel that does not forward is found, too.
    let made = Made::nothing()
        .set("/proc/sys/net/ipv4/ip_forward", "1")
        .by("ip netns add policed", "ip netns del policed");
    for number in 0..3 {
        run(&format!("ip link add p{number} type veth peer name t{number} netns policed"));
        run(&format!("ip link set dev p{number} up"));
        run(&format!("ip -n policed address add 198.51.{number}.2/24 dev t{number}"));
        run(&format!("ip -n policed link set dev t{number} up"));
    }
    for line in [
        "qdisc add dev p0 ingress",
        "filter add dev p0 parent ffff: protocol all u32 match u32 0 0 police rate 8kbit \
         burst 1500 mtu 64kb drop flowid :1",
        "qdisc add dev p1 clsact",
        "filter add dev p1 ingress matchall action police rate 100mbit burst 15k \
         conform-exceed drop/pipe",
        "qdisc add dev p2 clsact",
        "filter add dev p2 ingress matchall action police rate 100mbit burst 15k index 77",
        "actions change action police rate 100000000bit burst 500000 mtu 2047 \
         conform-exceed drop/ok index 77",
    ] {
        run(&format!("tc {line}"));
    }
    run("ip address add 198.51.0.1/24 dev p0");
    let policed = sys::netns::NetNs::open("/run/netns/policed".as_ref()).unwrap();
    let tenant = testbed::Host::found("policed", policed).unwrap();
    made.datagrams(&tenant, (0, 1), (Ipv4Addr::new(198, 51, 0, 1), 9), PACED)
}

/// Finding from a counter that the guest's kernel never resets.
pub const STAYS: &str = "OV049";

pub const FAULTS: &[Fault] = &[
    fault("OV008", &[], |_| {
        let made = Made::nothing().set("/proc/sys/net/ipv4/ip_forward", "1");
        // Forwarding disables it.
        made.by("ip link set dev vmx0 up", "ip link set dev vmx0 down")
            .by("ethtool -K vmx0 lro on", "ethtool -K vmx0 lro off")
    }),
    shares("OV023", &[], storm),
    fault("OV025", &["OV027", "OV032"], |bench| {
        let made = Made::nothing().set(BACKLOG, "1");
        let steered = steered(bench);
        made.and(|| drop(steered))
    }),
    fault("OV026", &["OV023"], |bench| {
        let made = Made::nothing().set("/proc/sys/net/core/netdev_budget", "1");
        let storm = storm(bench);
        made.and(|| drop(storm))
    }),
    fault("OV027", &[], |_| Made::nothing().set(BACKLOG, "100")),
    fault("OV028", &[], |_| {
        let made = tracked();
        let count = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
        made.set(CONNTRACK, count.trim())
    }),
    fault("OV029", &["OV028"], |bench| {
        let made = tracked().set(CONNTRACK, "5");
        made.datagrams(&bench.own, (0, 50), (PEER, 9), PACED)
    }),
    fault("OV040", &["OV032"], |bench| {
        let mut made = Made::nothing();
        for (number, limit) in [(1, "1"), (2, "2"), (3, "4")] {
            let file = format!("/proc/sys/net/ipv4/neigh/default/gc_thresh{number}");
            made = made.set(&file, limit);
        }
        for last in 100..140 {
            let to = (Ipv4Addr::new(192, 0, 2, last), 9);
            made = made.datagrams(&bench.own, (0, 1), to, Duration::from_millis(50));
        }
        made
    }),
    fault("OV053", &[], |_| {
        let device = "vx8 type vxlan id 43 dstport 8472";
        let made = Made::nothing().by(
            &format!("ip link add {device} local {OWN} remote {PEER} dev nic0"),
            "ip link del vx8",
        );
        made.by("ip link set dev vx8 up", "ip link set dev vx8 down")
    }),
    fault("OV054", &[], |_| {
        let made = Made::nothing()
            .by("ip link set dev vmx0 up", "ip link set dev vmx0 down")
            .by("ip address add 203.0.113.1/24 dev vmx0", "ip address del 203.0.113.1/24 dev vmx0");
        run("ip neighbour add 203.0.113.2 dev vmx0 lladdr 02:00:00:00:00:66");
        made.by(
            "ip link add vx9 type vxlan id 44 dstport 4789 local 203.0.113.1 \
             remote 203.0.113.2 dev vmx0",
            "ip link del vx9",
        )
        .by("ip link set dev vx9 up", "ip link set dev vx9 down")
    }),
    fault("OV055", &[], |_| {
        Made::nothing().by("ethtool -L nic0 combined 1", "ethtool -L nic0 combined 2")
    }),
    shares("OV056", &[], |bench| {
        // Flows in the tunnel have ports of their own.
        let hash = |fields: &str| format!("ethtool -N nic0 rx-flow-hash udp4 {fields}");
        let made = Made::nothing().by(&hash("sd"), &hash("sdfn"));
        made.datagrams(&bench.peer, (1, 64), (Ipv4Addr::new(10, 1, 0, 1), 9), PACED)
    }),
    shares("OV057", &["OV023"], |bench| {
        let storm = storm(bench);
        let made = on_one_cpu(bench).and(|| drop(storm));
        made.datagrams(&bench.peer, (0, 1), (OWN, 9), 10 * PACED)
    }),
    fault("OV058", &[], |bench| {
        let made = on_one_cpu(bench);
        made.datagrams(&bench.peer, (1, 64), (OWN, 9), PACED)
    }),
    fault("OV059", &[], |bench| {
        bench.interrupts("nic1", "0");
        let files = bench.interrupt_files("nic1");
        let made = Made::nothing().and(move || {
            files.iter().for_each(|file| std::fs::write(file, "1").unwrap());
            // The next interrupt moves to the new CPU.
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            for _ in 0..20 {
                socket.send_to(b"overlay", (PEER, 9)).unwrap();
                std::thread::sleep(PACED);
            }
        });
        made.datagrams(&bench.own, (0, 1), (TUNNELLED, 9), PACED)
    }),
    fault("OV062", &["OV025", "OV027", "OV032"], |bench| {
        let made = Made::nothing().set(BACKLOG, "10");
        let made = made.set("/proc/sys/net/core/flow_limit_cpu_bitmap", "3");
        let steered = steered(bench);
        made.and(|| drop(steered))
    }),
    fault("OV047", &[], |_| open_vswitch("netdev")),
    fault("OV065", &[], |bench| {
        let made = open_vswitch("system");
        let daemon = run("busybox pidof ovs-vswitchd").trim().to_owned();
        let (stop, go) =
            (format!("busybox kill -STOP {daemon}"), format!("busybox kill -CONT {daemon}"));
        let made = made.by(&stop, &go);
        // For an unknown flow, each packet is an upcall, until the daemon's socket is full.
        run("ip neighbour add 203.0.113.2 dev o1 lladdr 02:00:00:00:01:02");
        let to = (Ipv4Addr::new(203, 0, 113, 2), 9);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        testbed::poll("a packet that is lost", LIMIT, || {
            for _ in 0..1000 {
                socket.send_to(&[7; 1000], to).unwrap();
            }
            let shown = run("ovs-dpctl show");
            Ok(if shown.contains(" lost:0") { Err(shown) } else { Ok(()) })
        })
        .unwrap();
        made.datagrams(&bench.own, (1, 1), to, PACED)
    }),
    fault("OV100", &[], filtered_vlans),
    fault("OV101", &[], policed),
    fault("OV049", &["OV032"], |bench| {
        // The kernel's time-out of a queue is 5 s.
        let made = Made::nothing().by("ip link set dev stuck0 up", "ip link set dev stuck0 down");
        run("ip address add 203.0.113.1/24 dev stuck0");
        run("ip neighbour add 203.0.113.2 dev stuck0 lladdr 02:00:00:00:00:55");
        let to = (Ipv4Addr::new(203, 0, 113, 2), 9);
        let made = made.datagrams(&bench.own, (0, 1), to, Duration::from_micros(100));
        testbed::poll("a timeout of stuck0", LIMIT, || {
            let read = |queue: &std::path::Path| std::fs::read_to_string(queue.join("tx_timeout"));
            let queue = std::path::Path::new("/sys/class/net/stuck0/queues/tx-0");
            let text = read(queue).unwrap();
            Ok(if text.trim() == "0" { Err(text) } else { Ok(()) })
        })
        .unwrap();
        made
    }),
];
