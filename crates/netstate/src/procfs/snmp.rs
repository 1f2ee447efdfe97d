//! IP, UDP and TCP counters of one network namespace: `/proc/net/snmp`,
//! `/proc/net/netstat` and `/proc/net/snmp6`.
//!
//! Source: `net/ipv4/proc.c`, `net/ipv6/proc.c`; meanings from RFC 4293 (IP),
//! RFC 4113 (UDP), RFC 4022 (TCP) and `Documentation/networking/snmp_counter.rst`.
//! A missing counter is an error if every supported kernel has it, and 0 if it is marked as newer.

use sys::netns::NetNs;

use crate::proc::{ParseError, ProcFile, Result, decimal};

/// IPv4 and transport counters of the namespace of the opening thread.
pub const PROC_SNMP: &str = "/proc/thread-self/net/snmp";
/// Further IPv4 and TCP counters.
pub const PROC_NETSTAT: &str = "/proc/thread-self/net/netstat";
/// IPv6 counters; missing if the kernel has no IPv6.
pub const PROC_SNMP6: &str = "/proc/thread-self/net/snmp6";

/// A struct of counters by kernel name. `since` does not handle wrap-around: the counters are 64
/// bits wide, so only a damaged file goes backwards.
macro_rules! counters {
    (
        $(#[$meta:meta])* $type:ident {
            $($(#[$doc:meta])* $field:ident = $name:literal $($newer:ident)?,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize,
        )]
        // A saved host may lack counters that are read since.
        #[serde(default)]
        pub struct $type {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $type {
            /// Returns the kernel's name and the value of each counter.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field),)*].into_iter()
            }

            /// Returns the increments since `before`.
            #[must_use]
            pub fn since(&self, before: &$type) -> $type {
                $type { $($field: self.$field.saturating_sub(before.$field),)* }
            }

            /// Returns the sum of both, counter by counter.
            #[must_use]
            pub fn plus(&self, other: &$type) -> $type {
                $type { $($field: self.$field.saturating_add(other.$field),)* }
            }

            /// Reads each counter from `lookup(name)`.
            fn collect(
                mut lookup: impl FnMut(
                    &'static str,
                    bool,
                ) -> std::result::Result<u64, ParseError>,
            ) -> std::result::Result<$type, ParseError> {
                Ok($type { $($field: lookup($name, counters!(@required $($newer)?))?,)* })
            }
        }
    };
    (@required) => { true };
    (@required newer) => { false };
}

counters! {
    /// `Udp:`, IPv4 (`Udp6…` of `snmp6` uses the same names).
    Udp {
        /// Datagrams delivered to sockets.
        in_datagrams = "InDatagrams",
        /// Datagrams for a port without a socket.
        no_ports = "NoPorts",
        /// Datagrams that reached a socket and were dropped; includes the following errors.
        in_errors = "InErrors",
        /// Datagrams that sockets have sent.
        out_datagrams = "OutDatagrams",
        /// Dropped at a full socket receive buffer; part of `in_errors`.
        rcvbuf_errors = "RcvbufErrors",
        /// Not sent for lack of send buffer, or dropped in the local queue.
        sndbuf_errors = "SndbufErrors",
        /// Dropped for a wrong checksum; part of `in_errors`.
        in_csum_errors = "InCsumErrors",
        /// Dropped at the protocol's memory limit (`net.ipv4.udp_mem`); part of
        /// `in_errors`. Since Linux 5.11.
        mem_errors = "MemErrors" newer,
    }
}

counters! {
    /// `Icmp:`, IPv4.
    Icmp {
        /// Messages received.
        in_msgs = "InMsgs" newer,
        /// Dropped for a wrong checksum.
        in_csum_errors = "InCsumErrors" newer,
        /// Messages "destination unreachable" received.
        in_dest_unreachs = "InDestUnreachs" newer,
        /// Echo requests received.
        in_echos = "InEchos" newer,
        /// Echo replies sent. A reply without a route is not counted.
        out_echo_reps = "OutEchoReps" newer,
    }
}

counters! {
    /// `Tcp:`, both IP versions.
    Tcp {
        /// Connections that this host opened with a SYN.
        active_opens = "ActiveOpens",
        /// Connections accepted at a listening socket, their handshake complete.
        passive_opens = "PassiveOpens",
        /// Connection attempts that failed.
        attempt_fails = "AttemptFails",
        /// Connections that went from ESTABLISHED or CLOSE-WAIT straight to CLOSED.
        estab_resets = "EstabResets",
        /// Segments received (each segment of a GRO packet counts).
        in_segs = "InSegs",
        /// Segments sent (each segment of a GSO packet counts).
        out_segs = "OutSegs",
        /// Segments retransmitted (each segment of a GSO packet counts).
        retrans_segs = "RetransSegs",
        /// Segments received in error.
        in_errs = "InErrs",
        /// Segments sent with RST.
        out_rsts = "OutRsts",
        /// Segments dropped for a wrong checksum; part of `in_errs`.
        in_csum_errors = "InCsumErrors",
    }
}

counters! {
    /// `Ip:`, IPv4.
    Ip {
        /// Packets received from devices.
        in_receives = "InReceives",
        /// Dropped: malformed header, TTL exceeded in forwarding.
        in_hdr_errors = "InHdrErrors",
        /// Dropped: not for this host and not forwarded.
        in_addr_errors = "InAddrErrors",
        /// Packets forwarded for other hosts.
        forw_datagrams = "ForwDatagrams",
        /// Dropped on receive, although the packet was valid.
        in_discards = "InDiscards",
        /// Packets delivered to a transport protocol.
        in_delivers = "InDelivers",
        /// Packets sent by local transport protocols.
        out_requests = "OutRequests",
        /// Dropped on send, although the packet was valid (full queue).
        out_discards = "OutDiscards",
        /// Dropped because there was no route.
        out_no_routes = "OutNoRoutes",
        /// Fragments received for reassembly.
        reasm_reqds = "ReasmReqds",
        /// Packets reassembled completely.
        reasm_oks = "ReasmOKs",
        /// Failed reassemblies: timeout, memory limit, malformed fragments.
        reasm_fails = "ReasmFails",
        /// Packets that were fragmented.
        frag_oks = "FragOKs",
        /// Packets dropped because they were too big and must not be fragmented.
        frag_fails = "FragFails",
        /// Fragments created.
        frag_creates = "FragCreates",
    }
}

counters! {
    /// `IpExt:`, IPv4.
    IpExt {
        /// Dropped: no route back to the sender, or no route forward.
        in_no_routes = "InNoRoutes",
        /// Dropped: shorter than its header says.
        in_truncated_pkts = "InTruncatedPkts",
        /// Multicast packets received.
        in_mcast_pkts = "InMcastPkts",
        /// Broadcast packets received.
        in_bcast_pkts = "InBcastPkts",
        /// Layer-3 bytes received.
        in_octets = "InOctets",
        /// Layer-3 bytes sent.
        out_octets = "OutOctets",
        /// Dropped for a wrong checksum.
        in_csum_errors = "InCsumErrors",
    }
}

counters! {
    /// Some of `TcpExt:`, both IP versions.
    TcpExt {
        /// Connections dropped at a full accept queue; part of `listen_drops`.
        listen_overflows = "ListenOverflows",
        /// Connections dropped at a listening socket.
        listen_drops = "ListenDrops",
        /// Times that a connection's retransmission timer expired.
        timeouts = "TCPTimeouts",
        /// Tail loss probes sent.
        loss_probes = "TCPLossProbes",
        /// Segments dropped at a full socket backlog.
        backlog_drop = "TCPBacklogDrop",
        /// Segments dropped at a full receive queue. Since Linux 4.17.
        rcv_q_drop = "TCPRcvQDrop" newer,
        /// SYNs and SYN-ACKs retransmitted.
        syn_retrans = "TCPSynRetrans",
        /// Packets of any protocol dropped by the reverse-path filter (`rp_filter`), which the
        /// kernel counts here. Since Linux 3.2.
        reverse_path_filter = "IPReversePathFilter" newer,
    }
}

counters! {
    /// `Ip6…` of `snmp6`.
    Ip6 {
        /// Packets received from devices.
        in_receives = "InReceives",
        /// Dropped: malformed header, hop limit exceeded in forwarding.
        in_hdr_errors = "InHdrErrors",
        /// Dropped: over the outgoing device's MTU.
        in_too_big_errors = "InTooBigErrors",
        /// Dropped because there was no route.
        in_no_routes = "InNoRoutes",
        /// Dropped: not for this host and not forwarded.
        in_addr_errors = "InAddrErrors",
        /// Dropped: shorter than its header says.
        in_truncated_pkts = "InTruncatedPkts",
        /// Dropped on receive, although the packet was valid.
        in_discards = "InDiscards",
        /// Packets forwarded for other hosts.
        out_forw_datagrams = "OutForwDatagrams",
        /// Dropped on send, although the packet was valid.
        out_discards = "OutDiscards",
        /// Dropped because there was no route.
        out_no_routes = "OutNoRoutes",
        /// Failed reassemblies: timeout, memory limit, malformed fragments.
        reasm_fails = "ReasmFails",
        /// Packets that could not be fragmented.
        frag_fails = "FragFails",
        /// Layer-3 bytes received.
        in_octets = "InOctets",
        /// Layer-3 bytes sent.
        out_octets = "OutOctets",
    }
}

/// `/proc/net/snmp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snmp {
    /// Line `Ip:`.
    pub ip: Ip,
    /// TCP over both IP versions.
    pub tcp: Tcp,
    /// Line `Udp:`, IPv4 only.
    pub udp: Udp,
    /// Line `Icmp:`.
    pub icmp: Icmp,
}

impl Snmp {
    /// Parses the text of `/proc/net/snmp`.
    ///
    /// # Errors
    /// Name and value lines that do not match, a missing counter, or a value that is not a number.
    pub fn parse(text: &str) -> std::result::Result<Snmp, ParseError> {
        let table = Table::parse(PROC_SNMP, text)?;
        Ok(Snmp {
            ip: Ip::collect(|name, required| table.get("Ip", name, required))?,
            tcp: Tcp::collect(|name, required| table.get("Tcp", name, required))?,
            udp: Udp::collect(|name, required| table.get("Udp", name, required))?,
            icmp: Icmp::collect(|name, required| table.get("Icmp", name, required))?,
        })
    }
}

/// `/proc/net/netstat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Netstat {
    /// Line `IpExt:`, IPv4 only.
    pub ip_ext: IpExt,
    /// TCP over both IP versions.
    pub tcp_ext: TcpExt,
}

impl Netstat {
    /// Parses the text of `/proc/net/netstat`.
    ///
    /// # Errors
    /// As [`Snmp::parse`].
    pub fn parse(text: &str) -> std::result::Result<Netstat, ParseError> {
        let table = Table::parse(PROC_NETSTAT, text)?;
        Ok(Netstat {
            ip_ext: IpExt::collect(|name, required| table.get("IpExt", name, required))?,
            tcp_ext: TcpExt::collect(|name, required| table.get("TcpExt", name, required))?,
        })
    }
}

/// `/proc/net/snmp6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snmp6 {
    /// Counters with the prefix `Ip6`.
    pub ip: Ip6,
    /// Counters with the prefix `Udp6`.
    pub udp: Udp,
}

impl Snmp6 {
    /// Parses the text of `/proc/net/snmp6`: a name and a value per line.
    ///
    /// # Errors
    /// A line in another format, a missing counter, or a value that is not a number.
    pub fn parse(text: &str) -> std::result::Result<Snmp6, ParseError> {
        let mut fields = Vec::with_capacity(96);
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split_ascii_whitespace();
            let (Some(name), Some(value), None) = (words.next(), words.next(), words.next()) else {
                let expected = "a name and a value";
                return Err(ParseError::new(PROC_SNMP6, index + 1, "line", expected, line));
            };
            fields.push((index + 1, name, value));
        }
        let get = |prefix: &str, name: &'static str, required| {
            let found = fields.iter().find(|(_, n, _)| n.strip_prefix(prefix) == Some(name));
            value_of(PROC_SNMP6, prefix, name, found.map(|(l, _, v)| (*l, *v)), required)
        };
        Ok(Snmp6 {
            ip: Ip6::collect(|name, required| get("Ip6", name, required))?,
            udp: Udp::collect(|name, required| get("Udp6", name, required))?,
        })
    }
}

/// Alternating lines of names and values, each with the protocol in front.
struct Table<'a> {
    file: &'static str,
    rows: Vec<Row<'a>>,
}

/// Names and values of a protocol, and the line number of the values.
struct Row<'a> {
    protocol: &'a str,
    line: usize,
    fields: Vec<(&'a str, &'a str)>,
}

impl<'a> Table<'a> {
    fn parse(file: &'static str, text: &'a str) -> std::result::Result<Table<'a>, ParseError> {
        let mut rows = Vec::new();
        let mut lines = text.lines().enumerate();
        while let Some((index, names)) = lines.next() {
            let Some((protocol, names)) = names.split_once(':') else {
                let expected = "a protocol and a colon";
                return Err(ParseError::new(file, index + 1, "protocol", expected, names));
            };
            let line = index + 2;
            let values = lines.next().map_or("", |(_, values)| values);
            let Some(values) = values.strip_prefix(protocol).and_then(|v| v.strip_prefix(':'))
            else {
                let expected = "the values of the line before";
                return Err(ParseError::new(file, line, protocol, expected, values));
            };
            let names: Vec<&str> = names.split_ascii_whitespace().collect();
            let values: Vec<&str> = values.split_ascii_whitespace().collect();
            // A shifted column would be read under a wrong name.
            if names.len() != values.len() {
                let got = format!("{} names, {} values", names.len(), values.len());
                let expected = "as many values as names";
                return Err(ParseError::new(file, line, protocol, expected, &got));
            }
            rows.push(Row { protocol, line, fields: names.into_iter().zip(values).collect() });
        }
        Ok(Table { file, rows })
    }

    fn get(
        &self,
        protocol: &'static str,
        name: &'static str,
        required: bool,
    ) -> std::result::Result<u64, ParseError> {
        let found = self.rows.iter().filter(|row| row.protocol == protocol).find_map(|row| {
            row.fields.iter().find(|(n, _)| *n == name).map(|(_, value)| (row.line, *value))
        });
        value_of(self.file, protocol, name, found, required)
    }
}

fn value_of(
    file: &str,
    protocol: &str,
    name: &str,
    found: Option<(usize, &str)>,
    required: bool,
) -> std::result::Result<u64, ParseError> {
    let field = format!("{protocol} {name}");
    match found {
        Some((line, value)) => decimal(file, line, &field, Some(value)),
        // Every supported kernel has this counter.
        None if required => Err(ParseError::new(file, 0, field, "a counter of this name", "none")),
        // The counter is newer than this kernel.
        None => Ok(0),
    }
}

/// All three files of a namespace at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// From `/proc/net/snmp`, IPv4.
    pub ip: Ip,
    /// From `/proc/net/netstat`, IPv4.
    pub ip_ext: IpExt,
    /// IPv6; zero if the kernel has no IPv6.
    pub ip6: Ip6,
    /// From `/proc/net/snmp`, TCP over both IP versions.
    pub tcp: Tcp,
    /// TCP over both IP versions, continued.
    pub tcp_ext: TcpExt,
    /// From `/proc/net/snmp`, UDP over IPv4.
    pub udp: Udp,
    /// UDP over IPv6; zero if the kernel has no IPv6.
    pub udp6: Udp,
    /// From `/proc/net/snmp`, ICMP over IPv4.
    #[serde(default)]
    pub icmp: Icmp,
}

impl Counters {
    /// Returns the increments since `before`.
    #[must_use]
    pub fn since(&self, before: &Counters) -> Counters {
        Counters {
            ip: self.ip.since(&before.ip),
            ip_ext: self.ip_ext.since(&before.ip_ext),
            ip6: self.ip6.since(&before.ip6),
            tcp: self.tcp.since(&before.tcp),
            tcp_ext: self.tcp_ext.since(&before.tcp_ext),
            udp: self.udp.since(&before.udp),
            udp6: self.udp6.since(&before.udp6),
            icmp: self.icmp.since(&before.icmp),
        }
    }
}

/// The three files, open and bound to one namespace.
#[derive(Debug)]
pub struct SnmpFiles {
    snmp: ProcFile,
    netstat: ProcFile,
    snmp6: Option<ProcFile>,
}

impl SnmpFiles {
    /// Opens the files of the calling thread's namespace.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn open() -> std::result::Result<SnmpFiles, sys::Error> {
        let snmp6 = match ProcFile::open(PROC_SNMP6) {
            Ok(file) => Some(file),
            // The kernel has no IPv6.
            Err(e) if e.errno == nix::errno::Errno::ENOENT => None,
            Err(e) => return Err(e),
        };
        Ok(SnmpFiles {
            snmp: ProcFile::open(PROC_SNMP)?,
            netstat: ProcFile::open(PROC_NETSTAT)?,
            snmp6,
        })
    }

    /// Opens the files of a namespace.
    ///
    /// # Errors
    /// If the namespace cannot be entered or `/proc` is not mounted.
    pub fn open_in(namespace: &NetNs) -> std::result::Result<SnmpFiles, sys::Error> {
        namespace.run(SnmpFiles::open)?
    }

    /// Reads all counters. Any thread may call this.
    ///
    /// # Errors
    /// As [`ProcFile::read`] and [`Snmp::parse`].
    pub fn read(&self) -> Result<Counters> {
        let Snmp { ip, tcp, udp, icmp } = Snmp::parse(&self.snmp.read()?)?;
        let Netstat { ip_ext, tcp_ext } = Netstat::parse(&self.netstat.read()?)?;
        let Snmp6 { ip: ip6, udp: udp6 } = match &self.snmp6 {
            Some(file) => Snmp6::parse(&file.read()?)?,
            None => Snmp6::default(),
        };
        Ok(Counters { ip, ip_ext, ip6, tcp, tcp_ext, udp, udp6, icmp })
    }
}

#[cfg(test)]
mod tests;
