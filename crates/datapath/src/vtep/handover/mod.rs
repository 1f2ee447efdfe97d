//! Passes encapsulated GSO packets to the kernel without segmenting them in user space.
//!
//! A second TAP on the underlay's side accepts packets with their vnet header
//! (`TUN_F_UDP_TUNNEL_GSO`, Linux 6.17), so that the kernel or the NIC segments them once. A BPF
//! program at its ingress redirects them to the NIC; the kernel resolves the next hop. A BPF
//! program at the NIC's ingress redirects the tunnel's packets to the same TAP. It delivers packets
//! that a peer on this machine has not segmented, or that GRO has merged, unchanged and with their
//! metadata. The TAP has no address, and the kernel's IP stack does not use it.
//!
//! The following use the sockets, in both directions: frames that are not GSO packets (the sockets
//! send many per call), remote endpoints that are reached through another NIC, packets to be
//! fragmented, fragments of the tunnel, and packets that arrive on another NIC.
//!
//! If a NIC segments datagrams but not tunnels, the sockets are used as well, unless the
//! configuration demands otherwise. Its features are read once at the start.
//!
//! The kernel's packet filters do not see these packets. So, unless configured explicitly, this is
//! not used if there are packet filters, and it is disabled when some appear. The endpoint's own
//! configuration (the accepted senders) applies in any case.

mod programs;

use std::fs::File;
use std::io::{Read, Seek};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use netstate::netfilter::LegacyTables;
use netstate::watch::{Changed, StateWatch};
use netstate::{Netlink, netfilter};
use packet::ethernet::MacAddr;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;
use sys::tap::{Offload, Tap, TapOptions};
use sys::tcx;

use super::config::{Config, HandOver};
use crate::vnet_layout::HEADER;
use programs::Settings;

/// Offloads that the second TAP must support.
const NEEDED: Offload = Offload::ALL;

/// Length of each queue of the second TAP: a TCP window of some megabytes in single packets, the
/// same as the sockets' buffers hold.
const QUEUE_LENGTH: u32 = 4096;

/// How GSO packets are passed to the kernel, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandOverMode {
    /// Unsegmented, through that TAP to that NIC.
    TunnelGso {
        /// Name of the second TAP, whose packets are redirected to the NIC.
        tap: String,
        /// Name of the underlay device.
        nic: String,
    },
    /// Segmented here, with `UDP_SEGMENT`.
    UdpSegment {
        /// Why GSO packets are not passed on unsegmented.
        reason: String,
    },
}

impl std::fmt::Display for HandOverMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HandOverMode::TunnelGso { tap, nic } => write!(f, "tunnel-gso ({tap} to {nic})"),
            HandOverMode::UdpSegment { reason } => write!(f, "udp-segment ({reason})"),
        }
    }
}

/// The second TAP and its programs. They are removed when this is dropped or the process ends.
#[derive(Debug)]
pub(super) struct SecondTap {
    /// Dropped before the TAP: from then on, the sockets receive everything.
    links: Mutex<Option<[tcx::Link; 2]>>,
    taps: Vec<Tap>,
    nic: (String, u32),
    mac: MacAddr,
    netlink: Netlink,
    watch: StateWatch,
    netns: NetNs,
    legacy: Mutex<Legacy>,
    /// Whether it was configured explicitly, so that packet filters do not matter.
    asked_for: bool,
    /// Whether it was disabled, and why.
    withdrawn: AtomicBool,
    reason: Mutex<String>,
}

impl SecondTap {
    /// Creates the TAP and attaches the programs in the underlay's namespace.
    ///
    /// # Errors
    /// Returns the reason as text; nothing is left behind.
    pub(super) fn open(config: &Config, netns: &NetNs) -> Result<SecondTap, String> {
        let asked_for = config.hand_over == HandOver::TunnelGso;
        let namespace = netns.try_clone().map_err(|e| e.to_string())?;
        let opened = netns.run(|| {
            // Packets that are passed on unsegmented would bypass this filter.
            if !asked_for && let Some(filter) = filter() {
                return Err(filter);
            }
            let legacy = Legacy::open();
            let netlink = Netlink::open().map_err(|e| e.to_string())?;
            let watch = StateWatch::open().map_err(|e| e.to_string())?;
            let nic = nic(config, &netlink)?;
            // The device segments datagrams itself, but tunnel packets only the kernel could
            // segment.
            if !asked_for && cuts_datagrams_only(&nic.0, config.checksum) {
                return Err(format!("{} segments datagrams, but not tunnels", nic.0));
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
            // Without this offload the kernel would treat the tunnel's GSO packet as a plain UDP
            // packet.
            if !offload.contains(NEEDED) {
                return Err(format!(
                    "needs Linux 6.17: TAP devices of this kernel only accept {offload}"
                ));
            }
            // Disable IPv6, so that the kernel sends nothing of its own through the TAP.
            let path = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", first.name());
            match std::fs::write(&path, "1") {
                // Without IPv6 in the kernel there is nothing to disable; any other error would
                // leave it on.
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

    pub(super) fn queue(&self, thread: usize) -> &Tap {
        &self.taps[thread]
    }

    /// Returns the TAP's hardware address. Frames written to it must have this destination, or the
    /// kernel takes them for another host's.
    pub(super) fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Returns whether packets to that endpoint currently leave through the NIC.
    pub(super) fn leads_to(&self, remote: IpAddr) -> bool {
        !self.withdrawn.load(Ordering::Relaxed)
            // If the look-up fails, packets take the socket, where the kernel routes them.
            && self.netlink.device_index_to(remote).is_ok_and(|index| index == self.nic.1)
    }

    /// Returns how GSO packets are currently passed to the kernel.
    pub(super) fn way(&self) -> HandOverMode {
        if self.withdrawn.load(Ordering::Relaxed) {
            let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone();
            // A filter was found later; the reason is reported.
            return HandOverMode::UdpSegment { reason };
        }
        HandOverMode::TunnelGso { tap: self.taps[0].name().to_owned(), nic: self.nic.0.clone() }
    }

    /// Disables it permanently: from now on, the sockets handle everything.
    fn withdraw(&self, reason: String) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        self.withdrawn.store(true, Ordering::Relaxed);
        self.links.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Returns descriptors that become readable when links, routes or packet filters change.
    pub(super) fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, &'static str)> {
        self.watch.fds()
    }

    pub(super) fn netns(&self) -> &NetNs {
        &self.netns
    }

    fn legacy_filter(&self) -> Option<String> {
        self.legacy.lock().unwrap_or_else(PoisonError::into_inner).filter()
    }

    /// Checks for changes in the calling thread's namespace, which must be the underlay's. Returns
    /// whether routes must be looked up again.
    pub(super) fn look(&self) -> bool {
        let Changed { links, filters } = self.watch.what_changed();
        // An explicit setting is not changed, and a withdrawal is final.
        if self.asked_for || self.withdrawn.load(Ordering::Relaxed) {
            return links;
        }
        // Listing nftables needs a capability that the program has dropped by now; receiving
        // notifications does not. Legacy iptables sends no notifications, so check it each time.
        let found = if filters { filter() } else { self.legacy_filter() };
        match found {
            Some(filter) => self.withdraw(filter),
            None => return links,
        }
        true
    }
}

/// Returns name and index of the NIC that leads to the first remote endpoint with a route.
fn nic(config: &Config, netlink: &Netlink) -> Result<(String, u32), String> {
    let remotes = config.networks.iter().flat_map(|network| &network.remotes);
    let mut reason = "no remote endpoint is configured, so the NIC is unknown".to_owned();
    for remote in remotes {
        match netlink.device_to(*remote) {
            Ok(name) => {
                let link = netlink.link(&name).map_err(|e| e.to_string())?;
                // The programs expect an Ethernet header, and loopback has no neighbours.
                if link.mac.is_none_or(|mac| mac == MacAddr([0; 6])) {
                    return Err(format!(
                        "{name}, which leads to {remote}, is not an Ethernet device"
                    ));
                }
                return Ok((name, link.index));
            }
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

/// Returns whether a NIC of the calling thread's namespace segments super-datagrams but not
/// tunnelled GSO packets. Then less is segmented in software with the sockets. Without outer
/// checksums, sockets cannot send super-datagrams.
fn cuts_datagrams_only(nic: &str, checksum: bool) -> bool {
    let features = Ethtool::open().and_then(|ethtool| ethtool.features(nic));
    // If the features of the NIC are unknown, assume none.
    let features = features.unwrap_or_default();
    let active = |name| features.get(name).is_some_and(|feature| feature.active);
    checksum && active("tx-udp-segmentation") && !active("tx-udp_tnl-csum-segmentation")
}

/// Returns a packet filter of the calling thread's namespace that would be bypassed.
fn filter() -> Option<String> {
    match netfilter::base_chains() {
        Ok(chains) => {
            let chain = chains.into_iter().next();
            let named = chain.map(|c| {
                format!("nftables chain {} {} {} would be bypassed", c.family, c.table, c.chain)
            });
            named.or_else(legacy_filter)
        }
        Err(error) => Some(format!("cannot check for packet filters: {error}")),
    }
}

fn legacy_filter() -> Option<String> {
    Legacy::open().filter()
}

/// Lists of legacy tables in `/proc/net`.
const LISTS: [&str; 2] = ["ip_tables_names", "ip6_tables_names"];

/// Legacy iptables tables in a namespace. The kernel's lists are kept open, for a program that
/// checks them each second but may not open files.
#[derive(Debug)]
struct Legacy {
    tables: LegacyTables,
    /// The lists exist, but this user may not read them.
    hidden: bool,
    /// If a list does not exist yet: the list of modules, one of which creates it (proc(5)).
    modules: Option<File>,
}

impl Legacy {
    /// Opens the lists of the calling thread's namespace.
    fn open() -> Legacy {
        let mut tables = LegacyTables::default();
        // Opens the lists that exist.
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

    /// Returns a table that would be bypassed.
    fn filter(&mut self) -> Option<String> {
        let table = self.tables.names().into_iter().next();
        if let Some(table) = table {
            return Some(format!("{table} would be bypassed"));
        }
        if self.hidden {
            return Some("this user may not list the legacy iptables tables".to_owned());
        }
        // Tables of iptables-legacy are listed by name; modules need not be read.
        if self.tables.are_listed() {
            return None;
        }
        let mut modules = String::new();
        let file = self.modules.as_mut()?;
        // Whether the module's tables are empty can no longer be checked.
        file.rewind().and_then(|()| file.read_to_string(&mut modules)).ok()?;
        let loaded = modules.lines().find_map(|line| {
            ["ip_tables", "ip6_tables"]
                .into_iter()
                .find(|name| line.starts_with(&format!("{name} ")))
        });
        loaded.map(|name| format!("module {name} was loaded; its filters would be bypassed"))
    }
}
