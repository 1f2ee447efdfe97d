//! Reads one network namespace, on a thread inside it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::OnceLock;

use netstate::Netlink;
use netstate::conntrack::{Conntrack, ConntrackFiles};
use netstate::entry::{Knowledge, Neighbour};
use netstate::interface::{Counters, Interface};
use netstate::mdb::Multicast;
use netstate::netfilter::{base_chains, legacy_tables};
use netstate::openvswitch::{self, Datapaths};
use netstate::policer::Policer;
use netstate::proc::read_value;
use netstate::qdisc::Qdisc;
use netstate::reassembly::Reassembly;
use netstate::snmp::{self, SnmpFiles};
use netstate::tc_filter::{Filter, Filters, filters as filters_of};
use ruleset::{Clamp, Nftables, legacy_clamps, nft_clamps};
use sys::errno::Errno;
use sys::ethtool::Ethtool;
use sys::sysfs::Sysfs;

use super::{MEMBERS_SHOWN, Subject};
use crate::host::{
    Amount, Chain, Channels, Device, DropRule, Feature, Interrupt, Namespace, Pair, Reading, Rings,
    TunnelPaths,
};

/// Settings of each device, before and after its name.
pub(crate) const DEVICE_SYSCTLS: [(&str, &str); 8] = [
    ("net/ipv4/conf/", "/arp_ignore"),
    ("net/ipv4/conf/", "/proxy_arp"),
    ("net/ipv4/conf/", "/rp_filter"),
    ("net/ipv4/conf/", "/forwarding"),
    ("net/ipv6/conf/", "/disable_ipv6"),
    ("net/ipv6/conf/", "/forwarding"),
    ("net/ipv6/conf/", "/accept_ra"),
    ("net/ipv6/conf/", "/proxy_ndp"),
];

/// Settings of a namespace that checks read.
pub(super) const SYSCTLS: [&str; 13] = [
    "net/ipv4/icmp_echo_ignore_all",
    "net/ipv4/igmp_max_memberships",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_no_pmtu_disc",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/proxy_arp",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/tcp_mtu_probing",
    "net/ipv4/udp_rmem_min",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/proxy_ndp",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
];

/// Most routes that are read. A router may have a million.
const MOST_ROUTES: usize = 20_000;

/// First reading of a namespace: settings, devices and counters.
pub(super) fn read(subject: &Subject) -> Namespace {
    match subject.netns.run(|| inside(subject)) {
        Ok(namespace) => namespace,
        Err(error) => unread(subject, &error.to_string()),
    }
}

/// Returns a namespace in which nothing was read.
fn unread(subject: &Subject, reason: &str) -> Namespace {
    fn not<T>(reason: &str) -> Reading<T> {
        Reading::Unread(reason.to_owned())
    }
    Namespace {
        inode: subject.netns.inode(),
        // Without the cookie, only path and inode identify the namespace.
        cookie: subject.netns.cookie().ok().flatten(),
        label: subject.label.clone(),
        path: subject.path.as_ref().map(|path| path.display().to_string()),
        members: subject.members.iter().take(MEMBERS_SHOWN).cloned().collect(),
        member_count: subject.members.len(),
        holders: subject.holders.clone(),
        interfaces: not(reason),
        devices: BTreeMap::new(),
        later: not(reason),
        addresses: not(reason),
        neighbours: not(reason),
        fdb: not(reason),
        qdiscs: not(reason),
        policers: not(reason),
        filters: not(reason),
        drop_rules: not(reason),
        proxied: not(reason),
        udp_sockets: not(reason),
        snmp: not(reason),
        conntrack: not(reason),
        reassembly: not(reason),
        chains: not(reason),
        clamps: not(reason),
        datapaths: not(reason),
        sysctls: BTreeMap::new(),
        tunnels: Vec::new(),
        routes: not(reason),
        passages: not(reason),
        throttled: not(reason),
        multicast: not(reason),
        vlans: not(reason),
        rules: not(reason),
        translations: not(reason),
        listeners: not(reason),
        xfrm: not(reason),
    }
}

fn inside(subject: &Subject) -> Namespace {
    let mut namespace = unread(subject, "not read yet");
    match Netlink::open() {
        Ok(netlink) => {
            // Checks must come to the same result for a host that comes from a file.
            let plain = |links: Vec<Interface>| links.into_iter().map(Interface::without_detail);
            let links = netlink.links().map(|links| plain(links).collect());
            namespace.interfaces = Reading::from_result(links);
            namespace.addresses = Reading::from_result(netlink.addresses());
            namespace.neighbours = Reading::from_result(netlink.neighbours());
            namespace.fdb = Reading::from_result(netlink.fdb());
            namespace.routes = Reading::from_result(netlink.routes(MOST_ROUTES));
            namespace.rules = Reading::from_result(netlink.policy_rules());
            // Without filtering, a bridge ignores VLANs.
            let filters =
                |link: &Interface| link.bridge.is_some_and(|bridge| bridge.vlan_filtering);
            let links = namespace.interfaces.get().map(Vec::as_slice).unwrap_or_default();
            namespace.vlans = match links.iter().any(filters) {
                true => Reading::from_result(netlink.vlans()),
                false => Reading::Read(Vec::new()),
            };
        }
        Err(error) => {
            let mut lost = unread(subject, &error.to_string());
            // Settings are files and need no socket.
            lost.sysctls = sysctls(&[]);
            return lost;
        }
    }
    let interfaces = namespace.interfaces.get().map(Vec::as_slice).unwrap_or_default();
    let ethtool = Ethtool::open().map_err(|error| error.to_string());
    let sysfs = Sysfs::of(&subject.netns).map_err(|error| error.to_string());
    for interface in interfaces.iter().filter(|interface| !interface.loopback) {
        namespace.devices.insert(interface.index, device(interface, &ethtool, &sysfs));
    }
    // Without a querier, multicast goes to all ports.
    let has_querier = interfaces
        .iter()
        .filter_map(|link| link.bridge)
        .any(|bridge| bridge.mcast_snooping && (bridge.mcast_querier || bridge.other_querier));
    namespace.multicast = match has_querier {
        true => Reading::from_result(Multicast::read()),
        false => Reading::Read(Multicast::default()),
    };
    namespace.sysctls = sysctls(interfaces);
    namespace.udp_sockets = Reading::from_result(netstate::udp_socket::read());
    (namespace.chains, namespace.clamps) = filters();
    // First halves of the pairs; [`Later::join`] adds the second.
    // Only hosts that answer for others have any.
    let answers =
        namespace.sysctls.iter().any(|(path, value)| path.ends_with("/proxy_ndp") && value != "0");
    namespace.proxied = match answers {
        true => Reading::from_result(Netlink::open().and_then(|netlink| netlink.proxied())),
        false => Reading::Read(Vec::new()),
    };
    let Moving {
        snmp,
        conntrack,
        qdiscs,
        policers,
        filters,
        drop_rules,
        datapaths,
        throttled,
        xfrm,
        ..
    } = moving(subject);
    namespace.throttled = Reading::Read(Pair { before: throttled, after: Vec::new() });
    namespace.xfrm = Reading::Read(Pair { before: xfrm, after: BTreeMap::new() });
    let twice = |value| Pair { before: value, after: snmp::Counters::default() };
    namespace.snmp = Reading::from_result(snmp.map(twice));
    namespace.conntrack = Reading::from_result(
        conntrack.map(|value| Pair { before: value, after: Conntrack::default() }),
    );
    namespace.qdiscs =
        Reading::from_result(qdiscs.map(|value| Pair { before: value, after: Vec::new() }));
    namespace.policers =
        Reading::from_result(policers.map(|value| Pair { before: value, after: Vec::new() }));
    namespace.filters =
        Reading::from_result(filters.map(|value| Pair { before: value, after: Vec::new() }));
    namespace.drop_rules =
        Reading::from_result(drop_rules.map(|value| Pair { before: value, after: Vec::new() }));
    namespace.datapaths = Reading::from_result(
        datapaths.map(|value| Pair { before: value, after: Datapaths::default() }),
    );
    namespace
}

/// Reads packet filter chains, and the rules that clamp the MSS.
fn filters() -> (Reading<Vec<Chain>>, Reading<Vec<Clamp>>) {
    let chains = match base_chains() {
        Ok(chains) => chains,
        Err(error) => {
            let reason = error.to_string();
            return (Reading::Unread(reason.clone()), Reading::Unread(reason));
        }
    };
    // Without chains there are no rules: save the request, because there may be thousands of
    // namespaces.
    let nft = if chains.is_empty() { Ok(Vec::new()) } else { nft_clamps(&chains) };
    let clamps = nft.and_then(|mut clamps| {
        clamps.extend(legacy_clamps()?);
        Ok(clamps)
    });
    let nft = chains.into_iter().map(|chain| Chain {
        family: chain.family.to_owned(),
        table: chain.table,
        chain: chain.chain,
    });
    let legacy = legacy_tables().into_iter().map(|table| Chain {
        family: "iptables-legacy".to_owned(),
        table,
        chain: String::new(),
    });
    (Reading::Read(nft.chain(legacy).collect()), Reading::from_result(clamps))
}

/// Counters that are read twice.
struct Moving {
    snmp: Result<snmp::Counters, String>,
    conntrack: Result<Conntrack, String>,
    reassembly: Result<Reassembly, String>,
    qdiscs: Result<Vec<Qdisc>, String>,
    policers: Result<Vec<Policer>, String>,
    filters: Result<Vec<Filter>, String>,
    drop_rules: Result<Vec<DropRule>, String>,
    links: Result<BTreeMap<u32, Counters>, String>,
    neighbours: Result<Vec<Neighbour>, String>,
    datapaths: Result<Datapaths, String>,
    throttled: Vec<u64>,
    xfrm: BTreeMap<String, u64>,
}

fn moving(subject: &Subject) -> Moving {
    let conntrack = || {
        let files = ConntrackFiles::open().map_err(|error| error.to_string())?;
        let files = files.map_err(|absent| absent.reason)?;
        files.read().map_err(|error| error.to_string())
    };
    let snmp = SnmpFiles::open().map_err(|error| error.to_string());
    let netlink = Netlink::open().map_err(|error| error.to_string());
    let of_links = |netlink: &Netlink| -> Result<BTreeMap<u32, Counters>, String> {
        let all = netlink.links().map_err(|error| error.to_string())?;
        Ok(all.into_iter().map(|link| (link.index, link.counters)).collect())
    };
    let members = subject.members.iter();
    let daemons: Vec<u32> = members
        .filter(|member| member.command == openvswitch::DAEMON)
        .map(|member| member.pid)
        .collect();
    let qdiscs = netlink
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|netlink| netlink.qdiscs().map_err(|error| error.to_string()));
    let filters = match subject.is_untrusted {
        // A user could make any number of filters.
        true => Err(super::OF_ANOTHER.to_owned()),
        false => qdiscs
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|qdiscs| filters_of(qdiscs).map_err(|error| error.to_string())),
    };
    let (filters, policers) = match filters {
        Ok(Filters { filters, policers }) => (Ok(filters), Ok(policers)),
        Err(reason) => (Err(reason.clone()), Err(reason)),
    };
    Moving {
        snmp: snmp.and_then(|files| files.read().map_err(|error| error.to_string())),
        conntrack: conntrack(),
        reassembly: Reassembly::read(),
        qdiscs,
        policers,
        filters,
        drop_rules: drop_rules(subject),
        neighbours: netlink
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|netlink| netlink.neighbours().map_err(|error| error.to_string())),
        links: netlink.and_then(|netlink| of_links(&netlink)),
        datapaths: openvswitch::datapaths(&daemons).map_err(|error| error.to_string()),
        throttled: throttled(subject),
        xfrm: xfrm(),
    }
}

/// Counters of rules that drop packets or exempt them from tracking.
fn drop_rules(subject: &Subject) -> Result<Vec<DropRule>, String> {
    // A user could make any number of rules.
    if subject.is_untrusted {
        return Err(super::OF_ANOTHER.to_owned());
    }
    let read = Nftables::open().and_then(|mut nftables| ruleset::drop_counters(&mut nftables));
    let rules = match read {
        Ok(rules) => rules,
        // A kernel without nftables has no rules.
        Err(error) if matches!(error.errno(), Some(Errno::EOPNOTSUPP | Errno::EINVAL)) => {
            Vec::new()
        }
        Err(error) => return Err(error.to_string()),
    };
    let legacy = ruleset::legacy_drop_counters().map_err(|error| error.to_string())?;
    let rules = rules.into_iter().chain(legacy).map(|one| {
        let family = one.at.family_name().to_owned();
        let ruleset::Place { table, chain, handle, .. } = one.at;
        let ruleset::DropCounter { untracks, packets, to, comment, for_host, .. } = one;
        DropRule { family, table, chain, handle, untracks, for_host, to, comment, packets }
    });
    Ok(rules.collect())
}

/// Packets that IPsec dropped, by reason; empty if the kernel does not count them.
fn xfrm() -> BTreeMap<String, u64> {
    // Every call is on a thread inside the namespace.
    let text = std::fs::read_to_string("/proc/thread-self/net/xfrm_stat").unwrap_or_default();
    let counts = text.lines().filter_map(|line| {
        let (name, count) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), count.trim().parse().ok()?))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Time that a CPU quota has stopped the first processes, by process and group, µs.
fn throttled(subject: &Subject) -> Vec<u64> {
    /// A long list on a host with many containers, and it hardly changes.
    static MOUNTS: OnceLock<String> = OnceLock::new();
    let mounts =
        MOUNTS.get_or_init(|| std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    let processes = subject.members.iter().take(MEMBERS_SHOWN);
    let times = processes
        .flat_map(|member| netstate::cgroup::throttled_times(member.pid, mounts))
        .map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    times.collect()
}

/// Second reading of the counters, or why it failed.
pub(super) struct Later(Result<Moving, String>);

pub(super) fn read_later(subject: &Subject) -> Later {
    Later(subject.netns.run(|| moving(subject)).map_err(|error| error.to_string()))
}

impl Later {
    /// Adds the second reading.
    pub(super) fn join(self, namespace: &mut Namespace) {
        fn second<T>(pair: &mut Reading<Pair<T>>, after: Result<T, String>) {
            if let Reading::Read(halves) = pair {
                match after {
                    Ok(after) => halves.after = after,
                    Err(reason) => *pair = Reading::Unread(reason),
                }
            }
        }
        match self.0 {
            Ok(moving) => {
                second(&mut namespace.snmp, moving.snmp);
                second(&mut namespace.conntrack, moving.conntrack);
                namespace.reassembly = Reading::from_result(moving.reassembly);
                second(&mut namespace.qdiscs, moving.qdiscs);
                second(&mut namespace.policers, moving.policers);
                second(&mut namespace.filters, moving.filters);
                second(&mut namespace.drop_rules, moving.drop_rules);
                second(&mut namespace.datapaths, moving.datapaths);
                second(&mut namespace.throttled, Ok(moving.throttled));
                second(&mut namespace.xfrm, Ok(moving.xfrm));
                namespace.later = Reading::from_result(moving.links);
                // Without the second reading, incomplete entries keep their state.
                if let (Reading::Read(before), Ok(after)) =
                    (&mut namespace.neighbours, &moving.neighbours)
                {
                    unanswered(before, after);
                }
            }
            Err(reason) => {
                namespace.snmp = Reading::Unread(reason.clone());
                namespace.conntrack = Reading::Unread(reason.clone());
                namespace.reassembly = Reading::Unread(reason.clone());
                namespace.qdiscs = Reading::Unread(reason.clone());
                namespace.policers = Reading::Unread(reason.clone());
                namespace.filters = Reading::Unread(reason.clone());
                namespace.drop_rules = Reading::Unread(reason.clone());
                namespace.datapaths = Reading::Unread(reason.clone());
                namespace.throttled = Reading::Unread(reason.clone());
                namespace.xfrm = Reading::Unread(reason.clone());
                namespace.later = Reading::Unread(reason);
            }
        }
    }
}

/// Marks neighbours as failed that did not answer between the two readings. While a program sends,
/// the kernel starts again after each failure, so such a neighbour is mostly incomplete.
fn unanswered(before: &mut [Neighbour], after: &[Neighbour]) {
    let is_open =
        |known: &Neighbour| matches!(known.knowledge, Knowledge::Incomplete | Knowledge::Failed);
    let still: BTreeSet<(u32, IpAddr)> = after
        .iter()
        .filter(|known| is_open(known))
        .map(|known| (known.link, known.address))
        .collect();
    for known in before {
        let is_same = still.contains(&(known.link, known.address));
        if known.knowledge == Knowledge::Incomplete && is_same {
            known.knowledge = Knowledge::Failed;
        }
    }
}

fn sysctls(interfaces: &[Interface]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let own = interfaces.iter().filter(|interface| !interface.loopback).flat_map(|interface| {
        DEVICE_SYSCTLS.map(|(before, after)| format!("{before}{}{after}", interface.name))
    });
    for path in SYSCTLS.into_iter().map(str::to_owned).chain(own) {
        // The kernel lacks this setting.
        if let Ok(value) = read_value(format!("/proc/sys/{path}")) {
            all.insert(path, value);
        }
    }
    all
}

fn device(
    interface: &Interface,
    ethtool: &Result<Ethtool, String>,
    sysfs: &Result<Sysfs, String>,
) -> Device {
    let name = &interface.name;
    let mut device = Device::default();
    match ethtool {
        Ok(ethtool) => {
            device.features = Some(Reading::from_result(ethtool.features(name).map(|features| {
                features.into_iter().map(|(name, state)| (name, feature(state))).collect()
            })));
            // The driver may not support it, which is a valid state.
            device.driver = ethtool.driver(name).ok();
            device.rings = ethtool
                .rings(name)
                .ok()
                .map(|rings| Rings { rx: amount(rings.rx), tx: amount(rings.tx) });
            device.udp4_hash = ethtool.udp4_hash_fields(name).ok();
            device.channels = ethtool.channels(name).ok().map(|channels| Channels {
                rx: amount(channels.rx),
                tx: amount(channels.tx),
                combined: amount(channels.combined),
            });
        }
        Err(reason) => device.features = Some(Reading::Unread(reason.clone())),
    }
    // Without sysfs these stay empty, as for a driver without support.
    if let Ok(sysfs) = sysfs {
        let class = format!("class/net/{name}");
        let queues = sysfs.list(&format!("{class}/queues")).unwrap_or_default();
        let rps: Vec<String> = queues
            .iter()
            .filter(|queue| queue.starts_with("rx-"))
            .filter_map(|queue| sysfs.read(&format!("{class}/queues/{queue}/rps_cpus")).ok())
            .collect();
        device.rps = (!rps.is_empty()).then_some(rps);
        let timeouts: Vec<u64> = queues
            .iter()
            .filter(|queue| queue.starts_with("tx-"))
            .filter_map(|queue| sysfs.read(&format!("{class}/queues/{queue}/tx_timeout")).ok())
            .filter_map(|text| text.parse().ok())
            .collect();
        device.tx_timeouts = (!timeouts.is_empty()).then(|| timeouts.iter().sum());
        if interface.bus.is_some() {
            device.interrupts = interrupts(sysfs, &class);
            // -1, which does not parse, if the firmware names no node.
            let node = sysfs.read(&format!("{class}/device/numa_node"));
            let node = node.or_else(|_| sysfs.read(&format!("{class}/device/../numa_node")));
            device.numa_node = node.ok().and_then(|node| node.parse().ok());
        }
        device.tun_flags = match sysfs.read(&format!("{class}/tun_flags")) {
            Ok(text) => u32::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
            // Only TAP and TUN devices have the file.
            Err(_) => None,
        };
    }
    device
}

/// Returns the interrupts of the hardware behind a device. A virtio device has none of its own, but
/// its parent bus device has.
fn interrupts(sysfs: &Sysfs, class: &str) -> Option<Vec<Interrupt>> {
    let places = [format!("{class}/device/msi_irqs"), format!("{class}/device/../msi_irqs")];
    let numbers = places.iter().find_map(|place| sysfs.list(place).ok())?;
    let mut numbers: Vec<u32> = numbers.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let interrupt = |number: u32| {
        let directory = format!("/proc/irq/{number}");
        // The handler has a directory of its name. Without a handler the interrupt is not in use.
        let mut entries = std::fs::read_dir(&directory).ok()?.flatten();
        let handler = entries.find(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))?;
        let name = handler.file_name().into_string().ok()?;
        let cpus = read_value(format!("{directory}/effective_affinity_list"))
            // Not every architecture reports the effective affinity.
            .or_else(|_| read_value(format!("{directory}/smp_affinity_list")))
            .ok()?;
        Some(Interrupt { number, name: name.split_whitespace().last()?.to_owned(), cpus })
    };
    Some(numbers.into_iter().filter_map(interrupt).collect())
}

fn feature(state: sys::ethtool::Feature) -> Feature {
    match (state.active, state.changeable) {
        (true, true) => Feature::On,
        (false, true) => Feature::Off,
        (true, false) => Feature::OnFixed,
        (false, false) => Feature::OffFixed,
    }
}

fn amount(amount: sys::ethtool::Amount) -> Amount {
    Amount { now: amount.now, most: amount.most }
}

/// Reads the routes to the remotes of VXLAN devices, in the underlay's namespace.
pub(super) fn read_tunnels(subjects: &[Subject], namespaces: &mut [Namespace]) {
    for namespace in namespaces {
        let interfaces = namespace.interfaces.get().map(Vec::as_slice).unwrap_or_default();
        let mut tunnels = Vec::new();
        for interface in interfaces {
            let Some(vxlan) = &interface.vxlan else { continue };
            let elsewhere =
                namespace.devices.get(&interface.index).and_then(|device| device.link_namespace);
            let underlay = elsewhere.unwrap_or(namespace.inode);
            let mut remotes: BTreeSet<IpAddr> = vxlan.remote.into_iter().collect();
            for entry in namespace.fdb.get().into_iter().flatten() {
                if entry.link == interface.index {
                    remotes.extend(entry.remote);
                }
            }
            // An unspecified remote stands for none.
            remotes.retain(|remote| !remote.is_unspecified());
            let netlink = subjects
                .iter()
                .find(|subject| subject.netns.inode() == underlay)
                .ok_or_else(|| format!("namespace net:[{underlay}] of the underlay was not found"))
                .and_then(|subject| {
                    Netlink::open_in(&subject.netns).map_err(|error| error.to_string())
                });
            let ways = remotes
                .into_iter()
                .map(|remote| {
                    let way = netlink.as_ref().map_err(Clone::clone).and_then(|netlink| {
                        // A local address of the other family cannot be the source.
                        let from = vxlan.local.filter(|local| local.is_ipv4() == remote.is_ipv4());
                        match netlink.way_to(remote, from) {
                            // The local address no longer exists. Another check reports that; find
                            // the route without it.
                            Err(error)
                                if from.is_some() && error.errno() == Some(Errno::EINVAL) =>
                            {
                                netlink.way_to(remote, None)
                            }
                            answer => answer,
                        }
                        .map_err(|error| error.to_string())
                    });
                    (remote, Reading::from_result(way))
                })
                .collect();
            tunnels.push(TunnelPaths { link: interface.index, underlay, ways });
        }
        namespace.tunnels = tunnels;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_neighbour_that_stays_incomplete_has_failed() {
        let known = |last, knowledge| Neighbour {
            link: 2,
            address: IpAddr::from([10, 0, 0, last]),
            mac: None,
            knowledge,
            external: false,
            noarp: false,
        };
        let cases = [
            ("incomplete twice", Knowledge::Incomplete, Some(Knowledge::Incomplete), true),
            ("then failed", Knowledge::Incomplete, Some(Knowledge::Failed), true),
            ("then usable", Knowledge::Incomplete, Some(Knowledge::Usable), false),
            ("then gone", Knowledge::Incomplete, None, false),
            ("stale twice", Knowledge::Stale, Some(Knowledge::Stale), false),
        ];
        for (name, first, second, has_failed) in cases {
            let mut before = [known(7, first)];
            let after: Vec<Neighbour> = second.map(|state| known(7, state)).into_iter().collect();
            unanswered(&mut before, &after);
            assert_eq!(before[0].knowledge == Knowledge::Failed, has_failed, "{name}");
        }
    }
}
