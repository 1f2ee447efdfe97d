//! Removes data from a saved host that identifies its owner, so that the host can be published.
//!
//! Every field is named here, so that a new field does not compile until it is handled. Addresses
//! and names get pseudonyms, which are the same everywhere. Identifiers of the kernel (kinds,
//! drivers, features) stay if they have the form of one. Other texts are parsed and rebuilt, or
//! removed. The diagnosis stays the same, on objects with other names.
//!
//! Numbers stay (counters, sizes, indexes, ports, VNIs, process IDs, times).
//! `docs/src/design/hostile-files.md` has the table.

mod address;
mod group;
mod name;
mod packet_filter;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use netstate::entry::{Address, FdbEntry, Neighbour};
use netstate::inet_diag::TcpListener;
use netstate::interface::{Interface, Vxlan};
use netstate::interrupts::Interrupts;
use netstate::machine::MachineFacts;
use netstate::mdb::Multicast;
use netstate::namespace::{Holder, Member};
use netstate::openvswitch::{Datapath, Datapaths};
use netstate::policy_rule::PolicyRule;
use netstate::qdisc::Qdisc;
use netstate::route::NextHop;
use netstate::route_table::RouteEntry;
use netstate::udp_socket::UdpSocket;

use crate::dump::{self, DumpError};
use crate::host::{
    Chain, Device, Eligible, FarEnd, Host, Interrupt, LeftOut, Machine, Namespace, Pair, Reading,
    Scaling, TunnelPaths,
};
use crate::probed::Probed;
use address::Addresses;
use group::last_bits;
use name::Names;

/// Attempts with another key if a pseudonym happens to be a real address of the host. That reveals
/// nothing, but a reader could confuse the two.
const ATTEMPTS: usize = 8;
/// The device that every namespace has.
const LOOPBACK: &str = "lo";
/// Label of the reader's own namespace.
const HERE: &str = "here";

/// Returns a copy of the host that does not identify its owner. Pseudonyms are random each time.
///
/// # Errors
/// If the result cannot be written as JSON and read back.
pub fn scrub(host: &Host) -> Result<Host, DumpError> {
    let mut attempt = 1;
    let scrubbed = loop {
        let mut scrubber = Scrubber::new(host);
        let mut other = host.clone();
        scrubber.host(&mut other);
        if attempt == ATTEMPTS || !scrubber.addresses.overlap() {
            break other;
        }
        attempt += 1;
    };
    // Check that the result can be read.
    dump::parse(&serde_json::to_vec(&scrubbed)?)
}

/// Pseudonyms of one host.
#[derive(Debug, Default)]
struct Scrubber {
    addresses: Addresses,
    labels: Names,
    devices: Names,
    programs: Names,
    tables: Names,
    chains: Names,
    datapaths: Names,
    interrupts: BTreeMap<String, String>,
    inodes: BTreeMap<u64, u64>,
    /// Addresses by the last bits, which are in the group of their neighbour solicitations.
    solicited: BTreeMap<u32, Vec<Ipv6Addr>>,
}

/// All links of a host, for their names.
fn interfaces(host: &Host) -> impl Iterator<Item = &Interface> {
    let own = host.namespaces.iter().filter_map(|one| one.interfaces.get()).flatten();
    own.chain(host.far_ends.iter().flat_map(|end| &end.tunnels))
}

impl Scrubber {
    fn new(host: &Host) -> Scrubber {
        let mut scrubber = Scrubber {
            devices: Names::of(interfaces(host).map(|link| link.name.clone())),
            labels: Names::of(host.namespaces.iter().map(|one| one.label.clone())),
            ..Scrubber::default()
        };
        // Device names first, because holders, settings, rules and interrupts refer to them.
        for link in interfaces(host) {
            scrubber.device_name(&link.name, link.kind.as_deref());
        }
        for known in host.namespaces.iter().filter_map(|one| one.addresses.get()).flatten() {
            if let IpAddr::V6(address) = known.address {
                scrubber.solicited.entry(last_bits(address)).or_default().push(address);
            }
        }
        scrubber
    }

    fn device_name(&mut self, name: &str, kind: Option<&str>) -> String {
        self.devices.get(name, name::stem(kind), name == LOOPBACK)
    }

    fn host(&mut self, host: &mut Host) {
        let Host {
            format: _,
            program,
            taken_s: _,
            interval_s: _,
            machine,
            namespaces,
            left_out,
            far_ends,
            eligible,
            probed,
        } = host;
        *program = name::release(program);
        if program == "other" {
            // Versions of this program also start with a number below 10.
            *program = "0".to_owned();
        }
        for namespace in &*namespaces {
            self.inode(namespace.inode);
        }
        self.machine(machine);
        namespaces.iter_mut().for_each(|namespace| self.namespace(namespace));
        for LeftOut { object, reason } in left_out {
            let count = object.strip_suffix(" processes").and_then(|n| n.parse::<u32>().ok());
            // The object may be a label, a path or a command, so remove it.
            *object = count.map_or("an object".to_owned(), |count| format!("{count} processes"));
            *reason = name::reason(reason);
        }
        for FarEnd { address, tunnels } in far_ends {
            *address = self.addresses.ip(*address);
            tunnels.iter_mut().for_each(|link| self.interface(link));
        }
        for Eligible { namespace, link: _, ports: _, remotes: _, slow: _ } in eligible {
            *namespace = self.inode(*namespace);
        }
        probed.iter_mut().for_each(|one| self.probed(one));
    }

    fn probed(&mut self, probed: &mut Probed) {
        let Probed {
            namespace,
            cookie,
            index: _,
            device,
            features,
            peer,
            outgoing: _,
            verdict,
            detail,
            classes: _,
        } = probed;
        *namespace = self.inode(*namespace);
        *cookie = None;
        *device = self.device_name(device, None);
        features.iter_mut().for_each(|feature| *feature = name::identifier(feature));
        *peer = self.addresses.ip(*peer);
        *verdict = name::identifier(verdict);
        "removed".clone_into(detail);
    }

    fn machine(&mut self, machine: &mut Machine) {
        let Machine {
            facts,
            sysctls,
            softnet,
            cpu,
            interrupts,
            nodes,
            scaling,
            arp,
            kernel_openvswitch: _,
            kernel_vhost_net: _,
        } = machine;
        read(facts, |facts| {
            let MachineFacts {
                cpu_model,
                online_cpus: _,
                memory_bytes: _,
                kernel_release,
                os,
                hypervisor,
            } = facts;
            *cpu_model = "removed".to_owned();
            *kernel_release = name::release(kernel_release);
            *os = "removed".to_owned();
            *hypervisor = hypervisor.as_deref().map(name::hypervisor);
        });
        let kept = std::mem::take(sysctls).into_iter().filter_map(|(key, value)| {
            let key = self.setting(&key)?;
            let value = match value {
                Reading::Read(value) => Reading::Read(self::value(&key, &value)?),
                Reading::Unread(reason) => Reading::Unread(name::reason(&reason)),
            };
            Some((key, value))
        });
        *sysctls = kept.collect();
        // Numbers by CPU identify no host.
        read(softnet, |_| {});
        read(cpu, |_| {});
        read(arp, |_| {});
        read(interrupts, |Pair { before, after }| {
            for Interrupts { counts } in [before, after] {
                let old = std::mem::take(counts);
                *counts =
                    old.into_iter().map(|(name, by)| (self.interrupt_name(&name), by)).collect();
            }
        });
        nodes.values_mut().for_each(|cpus| *cpus = name::cpus(cpus));
        if let Some(Scaling { driver, governors }) = scaling {
            *driver = name::identifier(driver);
            for (governor, count) in std::mem::take(governors) {
                let all = governors.entry(name::identifier(&governor)).or_default();
                *all = count.saturating_add(*all);
            }
        }
    }

    fn interrupt_name(&mut self, name: &str) -> String {
        let number = self.interrupts.len() + 1;
        let other = || name::interrupt(name, number, &self.devices);
        self.interrupts.entry(name.to_owned()).or_insert_with(other).clone()
    }

    /// Returns another number in the kernel's range for namespaces.
    fn inode(&mut self, inode: u64) -> u64 {
        let next = 4_026_600_001 + self.inodes.len() as u64;
        *self.inodes.entry(inode).or_insert(next)
    }

    fn namespace(&mut self, namespace: &mut Namespace) {
        let Namespace {
            inode,
            cookie,
            label,
            path,
            members,
            member_count: _,
            holders,
            interfaces,
            devices,
            later,
            addresses,
            neighbours,
            fdb,
            qdiscs,
            policers,
            filters,
            drop_rules,
            proxied,
            udp_sockets,
            snmp,
            reassembly,
            conntrack,
            chains,
            clamps,
            datapaths,
            sysctls,
            tunnels,
            routes,
            passages,
            throttled,
            listeners,
            multicast,
            vlans,
            rules,
            translations,
            xfrm,
        } = namespace;
        // Rules that match name prefixes refer to these names.
        let names: Vec<String> =
            interfaces.get().into_iter().flatten().map(|link| link.name.clone()).collect();
        *inode = self.inode(*inode);
        // The cookie serves changes on this machine, and a scrubbed host is for reading only.
        *cookie = None;
        *label = self.labels.get(label, "ns", label == HERE);
        if let Some(path) = path {
            *path = namespace_path(path, label);
        }
        for Member { pid: _, command } in members {
            *command = self.program(command);
        }
        for Holder { pid: _, command, device, queues: _, vhost: _ } in holders {
            *command = self.program(command);
            *device = self.device_name(device, Some("tun"));
        }
        read(interfaces, |links| links.iter_mut().for_each(|link| self.interface(link)));
        devices.values_mut().for_each(|device| self.device(device));
        read(later, |_| {});
        read(addresses, |all| {
            for Address { link: _, address, prefix: _, duplicate: _ } in all {
                *address = self.addresses.ip(*address);
            }
        });
        read(neighbours, |all| {
            for Neighbour { link: _, address, mac, knowledge: _, external: _, noarp: _ } in all {
                *address = self.addresses.ip(*address);
                *mac = mac.map(|mac| self.addresses.mac(mac));
            }
        });
        read(fdb, |all| {
            for FdbEntry {
                link: _,
                mac,
                bridge: _,
                remote,
                port: _,
                vni: _,
                fixed: _,
                external: _,
            } in all
            {
                *mac = mac.map(|mac| self.addresses.mac(mac));
                *remote = remote.map(|remote| self.addresses.ip(remote));
            }
        });
        read(qdiscs, |Pair { before, after }| {
            for Qdisc {
                link: _,
                kind,
                handle: _,
                drops: _,
                requeues: _,
                queued: _,
                backlog: _,
                overlimits: _,
                shaper: _,
            } in before.iter_mut().chain(after)
            {
                *kind = name::identifier(kind);
            }
        });
        // Rates and counters.
        read(policers, |_| {});
        read(filters, |Pair { before, after }| {
            for filter in before.iter_mut().chain(after) {
                filter.kind = name::identifier(&filter.kind);
                // File and section of a program.
                filter.name = None;
            }
        });
        read(drop_rules, |Pair { before, after }| {
            before.iter_mut().chain(after).for_each(|rule| self.drop_rule(rule));
        });
        read(proxied, |all| {
            all.iter_mut().for_each(|(_, address)| *address = self.addresses.ip(*address));
        });
        read(udp_sockets, |all| {
            for UdpSocket { address, port: _, connected: _, queued: _, drops: _ } in all {
                *address = self.addresses.ip(*address);
            }
        });
        read(snmp, |_| {});
        read(reassembly, |_| {});
        read(conntrack, |_| {});
        read(chains, |all| {
            for Chain { family, table, chain } in all {
                *family = name::identifier(family);
                *table = self.table(table);
                *chain = self.chain(chain);
            }
        });
        read(clamps, |all| {
            *all = all.iter().flat_map(|clamp| self.clamp(clamp, &names)).collect();
        });
        read(datapaths, |Pair { before, after }| {
            for Datapaths { known, unanswered } in [before, after] {
                for Datapath { name, hit: _, missed: _, lost: _ } in known {
                    *name = self.datapath(name);
                }
                unanswered.iter_mut().for_each(|reason| *reason = name::reason(reason));
            }
        });
        let kept = std::mem::take(sysctls).into_iter().filter_map(|(key, value)| {
            let key = self.setting(&key)?;
            let value = self::value(&key, &value)?;
            Some((key, value))
        });
        *sysctls = kept.collect();
        for TunnelPaths { link: _, underlay, ways } in tunnels {
            *underlay = self.inode(*underlay);
            for (remote, way) in ways {
                *remote = self.addresses.ip(*remote);
                read(way, |NextHop { link: _, via, mtu: _, expires_s: _ }| {
                    *via = via.map(|via| self.addresses.ip(via));
                });
            }
        }
        read(throttled, |_| {});
        read(listeners, |all| {
            for TcpListener { address, port: _, waiting: _, limit: _ } in all {
                *address = self.addresses.ip(*address);
            }
        });
        // Numbers of VLANs identify no host.
        read(vlans, |_| {});
        read(multicast, |Multicast { members, routers: _ }| {
            *members = members.iter().flat_map(|member| self.groups(member)).collect();
        });
        read(routes, |all| {
            for RouteEntry {
                to,
                prefix: _,
                kind: _,
                via,
                link: _,
                table: _,
                protocol: _,
                metric: _,
                source,
            } in all
            {
                *to = self.addresses.ip(*to);
                *via = via.map(|via| self.addresses.ip(via));
                *source = source.map(|source| self.addresses.ip(source));
            }
        });
        read(rules, |all| {
            for PolicyRule {
                ipv6: _,
                priority: _,
                table: _,
                from,
                to,
                input,
                marked: _,
                mark: _,
                suppress: _,
                drops: _,
            } in all
            {
                for (network, _) in [from, to].into_iter().flatten() {
                    *network = self.addresses.ip(*network);
                }
                *input = input.as_ref().map(|name| self.device_name(name, None));
            }
        });
        read(passages, |all| all.iter_mut().for_each(|passage| self.passage(passage)));
        read(translations, |all| self.translations(all));
        // Only the kernel names counters. Other texts come from a changed file.
        read(xfrm, |pair| {
            pair.before.retain(|name, _| name::is_identifier(name));
            pair.after.retain(|name, _| name::is_identifier(name));
        });
    }

    fn interface(&mut self, interface: &mut Interface) {
        let Interface {
            index: _,
            name,
            kind,
            mac,
            mtu: _,
            max_mtu: _,
            up: _,
            carrier: _,
            carrier_is_new: _,
            loopback: _,
            noarp: _,
            master: _,
            link: _,
            link_netns: _,
            qdisc,
            tx_queue_len: _,
            tx_queues: _,
            rx_queues: _,
            gso_max_size: _,
            gso_ipv4_max_size: _,
            gso_max_segs: _,
            tso_max_size: _,
            bus,
            vxlan,
            geneve_port: _,
            bridge: _,
            port: _,
            xdp: _,
            counters: _,
            // Not in a host.
            detail: _,
        } = interface;
        *name = self.device_name(name, kind.as_deref());
        *kind = kind.as_deref().map(name::identifier);
        *mac = mac.map(|mac| self.addresses.mac(mac));
        *qdisc = qdisc.as_deref().map(name::identifier);
        *bus = bus.as_deref().map(name::identifier);
        if let Some(vxlan) = vxlan {
            let Vxlan {
                vni: _,
                local,
                remote,
                port: _,
                learning: _,
                checksum: _,
                checksum6: _,
                external: _,
                device: _,
                proxy: _,
                source_ports: _,
                ttl: _,
                gbp: _,
                gpe: _,
                detail: _,
            } = vxlan;
            *local = local.map(|local| self.addresses.ip(local));
            *remote = remote.map(|remote| self.addresses.ip(remote));
        }
    }

    fn device(&mut self, device: &mut Device) {
        let Device {
            link_namespace,
            driver,
            features,
            rings: _,
            channels: _,
            rps,
            tun_flags: _,
            tx_timeouts: _,
            interrupts,
            numa_node: _,
            udp4_hash: _,
        } = device;
        *link_namespace = link_namespace.map(|inode| self.inode(inode));
        *driver = driver.as_deref().map(name::identifier);
        if let Some(features) = features {
            // Only the kernel names features. Other texts come from a changed file.
            read(features, |all| all.retain(|name, _| name::is_identifier(name)));
        }
        for mask in rps.iter_mut().flatten() {
            *mask = name::mask(mask);
        }
        for Interrupt { number: _, name, cpus } in interrupts.iter_mut().flatten() {
            *name = self.interrupt_name(name);
            *cpus = name::cpus(cpus);
        }
    }

    fn program(&mut self, command: &str) -> String {
        let (stem, stays) = name::program(command);
        self.programs.get(command, stem, stays)
    }

    fn datapath(&mut self, name: &str) -> String {
        let stem = match name.split_once('@') {
            Some(("system", _)) => "system@dp",
            _ => "netdev@dp",
        };
        self.datapaths.get(name, stem, false)
    }

    /// Returns the path of a setting with its device's pseudonym; `None` for a setting that this
    /// program does not read.
    fn setting(&mut self, key: &str) -> Option<String> {
        if crate::collect::is_setting(key) {
            return Some(key.to_owned());
        }
        crate::collect::DEVICE_SYSCTLS.iter().find_map(|(before, after)| {
            let device = key.strip_prefix(before)?.strip_suffix(after)?;
            Some(format!("{before}{}{after}", self.device_name(device, None)))
        })
    }
}

/// Scrubs a value, or shortens the reason for its absence to the error.
fn read<T>(reading: &mut Reading<T>, mut scrub: impl FnMut(&mut T)) {
    match reading {
        Reading::Read(value) => scrub(value),
        Reading::Unread(reason) => *reason = name::reason(reason),
    }
}

/// Returns the value of a setting; `None` if it has an unexpected form.
fn value(key: &str, value: &str) -> Option<String> {
    if key.ends_with("_cpu_bitmap") { Some(name::mask(value)) } else { name::numbers(value) }
}

/// `/proc/PID/ns/net` stays; a name gets the label's pseudonym.
fn namespace_path(path: &str, label: &str) -> String {
    let pid = path.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/ns/net"));
    match pid.and_then(|pid| pid.parse::<u32>().ok()) {
        Some(pid) => format!("/proc/{pid}/ns/net"),
        None => format!("/run/netns/{label}"),
    }
}
