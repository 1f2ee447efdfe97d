//! No cutting in user space at all: encapsulated GSO packets handed over whole.
//!
//! A second TAP on the underlay's side takes what is to be sent with its vnet
//! header (`TUN_F_UDP_TUNNEL_GSO`, Linux 6.17), so that the kernel or the NIC cuts
//! once; a program at its ingress passes it on to the NIC, whose next hop the
//! kernel resolves. A program at the NIC's ingress takes the tunnel's packets to
//! the same TAP, which delivers what a peer on this machine has not cut, or GRO
//! has merged, as it is and with what is known about it. The TAP has no address and
//! nothing of the kernel's IP stack.
//!
//! What does not go this way goes through the sockets, in both directions: frames
//! that are no GSO packets (of which the sockets send many a call), remote ends
//! that another NIC leads to, packets to be fragmented, the tunnel's fragments,
//! what came in by another NIC.
//!
//! A NIC that cuts datagrams but no tunnels is left to the sockets, too, if nobody
//! insists, by what it can do at the start.
//!
//! The kernel's packet filters see none of what goes this way. So, unless it was
//! asked for by name, it is not used where there are any, and given up when some
//! appear; what is configured here (who may send) holds in any case.

mod programs;

use std::fs::File;
use std::io::{Read, Seek};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use netstate::netfilter::LegacyTables;
use netstate::watch::{Changed, Watch};
use netstate::{Netlink, netfilter};
use packet::ethernet::MacAddr;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;
use sys::tap::{Offload, Tap, TapOptions};
use sys::tcx;

use super::config::{Config, HandOver};
use crate::vnet_layout::HEADER;
use programs::Settings;

/// What the second TAP must take and give.
const NEEDED: Offload = Offload::ALL;

/// Packets that may wait in each queue of the second TAP: a TCP window of some
/// megabytes in single packets, as the sockets' buffers hold it.
const QUEUE_LENGTH: u32 = 4096;

/// How GSO packets get to the kernel, as told to users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Whole, by that TAP to that NIC.
    TunnelGso {
        /// Name of the second TAP, whose packets are redirected to the NIC.
        tap: String,
        /// Name of the underlay device.
        nic: String,
    },
    /// Cut here, by `UDP_SEGMENT`.
    UdpSegment {
        /// Why GSO packets are not handed over whole, in words.
        reason: String,
    },
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Way::TunnelGso { tap, nic } => write!(f, "tunnel-gso ({tap} to {nic})"),
            Way::UdpSegment { reason } => write!(f, "udp-segment ({reason})"),
        }
    }
}

/// The second TAP and its programs; gone when this is dropped, or the process.
#[derive(Debug)]
pub(super) struct SecondTap {
    /// Dropped before the TAP: from then on the sockets get everything.
    links: Mutex<Option<[tcx::Link; 2]>>,
    taps: Vec<Tap>,
    nic: (String, u32),
    mac: MacAddr,
    netlink: Netlink,
    watch: Watch,
    netns: NetNs,
    legacy: Mutex<Legacy>,
    /// Whether packet filters do not matter.
    asked_for: bool,
    /// Whether nothing goes this way any longer, and why.
    withdrawn: AtomicBool,
    reason: Mutex<String>,
}

impl SecondTap {
    /// Makes and joins everything in the underlay's namespace.
    ///
    /// # Errors
    /// Why not, in words; nothing is left then.
    pub(super) fn open(config: &Config, netns: &NetNs) -> Result<SecondTap, String> {
        let asked_for = config.hand_over == HandOver::TunnelGso;
        let namespace = netns.try_clone().map_err(|e| e.to_string())?;
        let opened = netns.run(|| {
            if !asked_for && let Some(filter) = filter() {
                return Err(filter);
            }
            let legacy = Legacy::open();
            let netlink = Netlink::open().map_err(|e| e.to_string())?;
            let watch = Watch::open().map_err(|e| e.to_string())?;
            let nic = nic(config, &netlink)?;
            if !asked_for && cuts_datagrams_only(&nic.0, config.checksum) {
                return Err(format!("{} cuts datagrams, but no tunnel", nic.0));
            }
            let options = TapOptions {
                vnet_header: Some(HEADER),
                multi_queue: config.queues > 1,
                exclusive: true,
                ..TapOptions::named("vtep%d")
            };
            let text = |error: sys::Error| error.to_string();
            let first = Tap::open(&options).map_err(text)?;
            let offload = first.negotiate_offload(NEEDED).map_err(text)?;
            if !offload.contains(NEEDED) {
                return Err(format!("Linux 6.17 needed: TAP devices here take only {offload}"));
            }
            // Without IPv6 the kernel sends nothing of its own by it.
            let path = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", first.name());
            match std::fs::write(&path, "1") {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("write {path}: {error}"));
                }
                _ => {}
            }
            let mac = MacAddr(first.hardware_address().map_err(text)?);
            first.set_nonblocking(true).map_err(text)?;
            let mut taps = vec![first];
            for _ in 1..config.queues {
                let queue = taps[0].open_queue().map_err(text)?;
                queue.set_nonblocking(true).map_err(text)?;
                taps.push(queue);
            }
            netlink.set_tx_queue_len(taps[0].name(), QUEUE_LENGTH).map_err(|e| e.to_string())?;
            netlink.set_up(taps[0].name()).map_err(|e| e.to_string())?;
            let tap = netlink.link(taps[0].name()).map_err(|e| e.to_string())?.index;
            let Config { local, port, .. } = *config;
            let links = programs::attach(Settings { nic: nic.1, tap, local, port })?;
            Ok(SecondTap {
                links: Mutex::new(Some(links)),
                taps,
                nic,
                mac,
                netlink,
                watch,
                netns: namespace,
                legacy: Mutex::new(legacy),
                asked_for,
                withdrawn: AtomicBool::new(false),
                reason: Mutex::default(),
            })
        });
        opened.map_err(|e| e.to_string())?
    }

    /// The queue of that thread.
    pub(super) fn queue(&self, thread: usize) -> &Tap {
        &self.taps[thread]
    }

    /// The TAP's hardware address: frames written to it are for it, so that the
    /// kernel does not take them for another's.
    pub(super) fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Whether packets to that end leave by the NIC, as routes are now.
    pub(super) fn leads_to(&self, remote: IpAddr) -> bool {
        !self.withdrawn.load(Ordering::Relaxed)
            && self.netlink.device_index_to(remote).is_ok_and(|index| index == self.nic.1)
    }

    /// How GSO packets go now.
    pub(super) fn way(&self) -> Way {
        if self.withdrawn.load(Ordering::Relaxed) {
            let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Way::UdpSegment { reason };
        }
        Way::TunnelGso { tap: self.taps[0].name().to_owned(), nic: self.nic.0.clone() }
    }

    /// Gives the hand-over up, for good: from now on the sockets have everything.
    fn withdraw(&self, reason: String) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        self.withdrawn.store(true, Ordering::Relaxed);
        self.links.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// What becomes readable when links, routes or packet filters change.
    pub(super) fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, &'static str)> {
        self.watch.fds()
    }

    /// The namespace that it is in.
    pub(super) fn netns(&self) -> &NetNs {
        &self.netns
    }

    fn legacy_filter(&self) -> Option<String> {
        self.legacy.lock().unwrap_or_else(PoisonError::into_inner).filter()
    }

    /// Looks at what may have changed, in the calling thread's namespace, which
    /// must be the underlay's. True if routes are to be looked up anew.
    pub(super) fn look(&self) -> bool {
        let Changed { links, filters } = self.watch.what_changed();
        if self.asked_for || self.withdrawn.load(Ordering::Relaxed) {
            return links;
        }
        // Listing nftables takes a right that a program has given up by now, being
        // told of a change does not. The older iptables notify nobody.
        let found = if filters { filter() } else { self.legacy_filter() };
        match found {
            Some(filter) => self.withdraw(filter),
            None => return links,
        }
        true
    }
}

/// The NIC that leads to the first remote end that has a route: name and index.
fn nic(config: &Config, netlink: &Netlink) -> Result<(String, u32), String> {
    let remotes = config.networks.iter().flat_map(|network| &network.remotes);
    let mut reason = "no remote end is configured, so that no NIC is known".to_owned();
    for remote in remotes {
        match netlink.device_to(*remote) {
            Ok(name) => {
                let link = netlink.link(&name).map_err(|e| e.to_string())?;
                // The programs expect an Ethernet header; loopback has no neighbours.
                if link.mac.is_none_or(|mac| mac == MacAddr([0; 6])) {
                    return Err(format!("{name}, which leads to {remote}, is no Ethernet device"));
                }
                return Ok((name, link.index));
            }
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

/// Whether a NIC of the calling thread's namespace takes super-datagrams uncut but
/// not tunnelled GSO packets: then the sockets have less cut by software. Without
/// outer checksums the kernel takes no super-datagrams from them.
fn cuts_datagrams_only(nic: &str, checksum: bool) -> bool {
    let features = Ethtool::open().and_then(|ethtool| ethtool.features(nic));
    // A NIC that tells nothing is taken for one that cuts nothing.
    let features = features.unwrap_or_default();
    let active = |name| features.get(name).is_some_and(|feature| feature.active);
    checksum && active("tx-udp-segmentation") && !active("tx-udp_tnl-csum-segmentation")
}

/// A packet filter of the calling thread's namespace that would be passed by.
fn filter() -> Option<String> {
    match netfilter::base_chains() {
        Ok(chains) => {
            let chain = chains.into_iter().next();
            let named = chain.map(|c| {
                format!("nftables chain {} {} {} would be passed by", c.family, c.table, c.chain)
            });
            named.or_else(legacy_filter)
        }
        Err(error) => Some(format!("whether there are packet filters cannot be told: {error}")),
    }
}

fn legacy_filter() -> Option<String> {
    Legacy::open().filter()
}

/// Their lists below `/proc/net`.
const LISTS: [&str; 2] = ["ip_tables_names", "ip6_tables_names"];

/// The tables of the older iptables in a namespace, for a program that looks each second
/// and may not open files: the kernel's lists are kept open.
#[derive(Debug)]
struct Legacy {
    tables: LegacyTables,
    /// They are there, but not for this user.
    hidden: bool,
    /// Where a list is not there yet: of modules that bring it (proc(5)).
    modules: Option<File>,
}

impl Legacy {
    /// Of the calling thread's namespace.
    fn open() -> Legacy {
        let mut tables = LegacyTables::default();
        // Opens what there is.
        tables.names();
        let modules = match tables.are_listed() {
            true => None,
            false => File::open("/proc/modules").ok(),
        };
        let hidden = |list: &str| {
            let list = Path::new("/proc/thread-self/net").join(list);
            list.exists() && File::open(list).is_err()
        };
        let hidden = LISTS.into_iter().any(hidden);
        Legacy { tables, hidden, modules }
    }

    /// One that would be passed by.
    fn filter(&mut self) -> Option<String> {
        let table = self.tables.names().into_iter().next();
        if let Some(table) = table {
            return Some(format!("{table} would be passed by"));
        }
        if self.hidden {
            return Some("the older iptables' tables cannot be listed by this user".to_owned());
        }
        if self.tables.are_listed() {
            return None;
        }
        let mut modules = String::new();
        let file = self.modules.as_mut()?;
        // Whether its tables are empty can no longer be seen.
        file.rewind().and_then(|()| file.read_to_string(&mut modules)).ok()?;
        let loaded = modules.lines().find_map(|line| {
            ["ip_tables", "ip6_tables"]
                .into_iter()
                .find(|name| line.starts_with(&format!("{name} ")))
        });
        loaded.map(|name| format!("module {name} was loaded, whose filters would be passed by"))
    }
}
