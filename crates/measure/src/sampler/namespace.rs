//! Sampler of a network namespace: protocol counters, connection tracking and packet sockets.

use std::collections::BTreeMap;

use netstate::conntrack::{Absent, Conntrack, ConntrackDelta, ConntrackFiles};
use netstate::packet_diag::{PacketDiag, PacketDrops};
use netstate::snmp::{Counters, SnmpFiles};
use netstate::sock_diag::SockDiagError;
use nix::errno::Errno;
use sys::netns::NetNs;

use super::{Result, SamplerError};

/// Samples one network namespace, from any thread. Its open files keep the namespace alive.
#[derive(Debug)]
pub struct Namespace {
    label: String,
    snmp: SnmpFiles,
    conntrack: std::result::Result<ConntrackFiles, Absent>,
    packets: Option<PacketDiag>,
}

/// Counters of a [`Namespace`] at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceSnapshot {
    counters: Counters,
    conntrack: Option<Conntrack>,
    packets: Option<PacketDrops>,
}

/// Counter differences of a namespace between two readings.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct NamespaceSample {
    /// The namespace's label (`tenant-b`).
    pub label: String,
    /// Increase of each protocol counter.
    pub counters: Counters,
    /// Conntrack entries at the end; `None` without conntrack.
    pub conntrack_entries: Option<u64>,
    /// Maximum number of conntrack entries; `None` without conntrack.
    pub conntrack_max: Option<u64>,
    /// Packets refused by conntrack; `None` if the kernel does not count them.
    pub conntrack: Option<ConntrackDelta>,
    /// Packets dropped at packet sockets (`AF_PACKET`); `None` if the kernel has no `PACKET_DIAG`.
    pub packet_socket_drops: Option<u64>,
}

impl Namespace {
    /// Opens the sampler of a namespace. `label` names it in figures (`a`, `tenant-b`).
    ///
    /// # Errors
    /// If the namespace cannot be entered, `/proc` is not mounted, or a file has an unknown
    /// format.
    pub fn open_in(namespace: &NetNs, label: &str) -> Result<Namespace> {
        let (snmp, conntrack, packets) = namespace
            .run(|| Ok((SnmpFiles::open()?, ConntrackFiles::open()?, PacketDiag::open())))?
            .map_err(|e: sys::Error| SamplerError::from(e))?;
        let error = |error| SamplerError::PacketDiag {
            namespace: label.to_owned(),
            error: Box::new(error),
        };
        let packets = match packets {
            Ok(packets) => match packets.read() {
                Ok(_) => Some(packets),
                // The kernel has sock_diag, but not for packet sockets.
                Err(SockDiagError::Kernel(e)) if e.errno == Errno::ENOENT => None,
                Err(e) => return Err(error(e)),
            },
            // The kernel has no sock_diag at all.
            Err(e) if e.errno == Errno::EPROTONOSUPPORT => None,
            Err(e) => return Err(error(e.into())),
        };
        Ok(Namespace { label: label.to_owned(), snmp, conntrack, packets })
    }

    /// Label in figures.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the reason if there are no conntrack figures.
    pub fn conntrack_reason(&self) -> Option<&str> {
        self.conntrack.as_ref().err().map(|absent| absent.reason.as_str())
    }

    /// Reads all counters.
    ///
    /// # Errors
    /// A file that cannot be read or has an unknown format.
    pub fn snapshot(&self) -> Result<NamespaceSnapshot> {
        let error = |error| SamplerError::PacketDiag {
            namespace: self.label.clone(),
            error: Box::new(error),
        };
        Ok(NamespaceSnapshot {
            counters: self.snmp.read()?,
            conntrack: match &self.conntrack {
                Ok(files) => Some(files.read()?),
                // No connection tracking: [`Namespace::conntrack_reason`] gives the reason.
                Err(_) => None,
            },
            packets: self.packets.as_ref().map(PacketDiag::read).transpose().map_err(error)?,
        })
    }

    /// Returns the differences between two readings.
    pub fn difference(
        &self,
        before: &NamespaceSnapshot,
        after: &NamespaceSnapshot,
    ) -> NamespaceSample {
        NamespaceSample {
            label: self.label.clone(),
            counters: after.counters.since(&before.counters),
            conntrack_entries: after.conntrack.as_ref().map(|conntrack| conntrack.count),
            conntrack_max: after.conntrack.as_ref().map(|conntrack| conntrack.max),
            conntrack: after
                .conntrack
                .as_ref()
                .zip(before.conntrack.as_ref())
                .and_then(|(after, before)| after.since(before)),
            packet_socket_drops: after
                .packets
                .as_ref()
                .zip(before.packets.as_ref())
                .map(|(after, before)| after.since(before)),
        }
    }
}

impl NamespaceSample {
    /// Returns the retransmitted TCP segments of both IP versions (`RetransSegs`).
    pub fn tcp_retransmits(&self) -> u64 {
        self.counters.tcp.retrans_segs
    }

    /// Returns nonzero UDP error counters, by protocol and kernel name (`UdpRcvbufErrors`,
    /// `Udp6NoPorts`), as in `nstat`.
    pub fn udp_errors(&self) -> BTreeMap<String, u64> {
        let mut errors = BTreeMap::new();
        for (protocol, counters) in [("Udp", &self.counters.udp), ("Udp6", &self.counters.udp6)] {
            for (name, value) in counters.named() {
                if value > 0 && !matches!(name, "InDatagrams" | "OutDatagrams") {
                    errors.insert(format!("{protocol}{name}"), value);
                }
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use netstate::snmp::Udp;

    use super::*;

    #[test]
    fn udp_errors_are_named_with_their_protocol_and_leave_out_traffic() {
        let mut sample = NamespaceSample::default();
        sample.counters.udp = Udp { in_datagrams: 9, rcvbuf_errors: 3, ..Udp::default() };
        sample.counters.udp6 = Udp { out_datagrams: 9, no_ports: 1, ..Udp::default() };
        let expected = [("Udp6NoPorts".to_owned(), 1), ("UdpRcvbufErrors".to_owned(), 3)];
        assert_eq!(sample.udp_errors(), expected.into());
    }
}
