//! Configuration of an endpoint, from a file (TOML) or the command line.
//!
//! ```toml
//! local = "10.0.0.1"
//!
//! [[network]]
//! vni = 10
//! tap = "tap0"
//! address = ["10.1.0.1/24"]
//! remotes = ["10.0.0.2", "10.0.0.3"]
//! fdb = { "02:00:00:00:00:07" = "10.0.0.3" }
//! neigh-suppress = true
//! neighbours = { "10.1.0.7" = "02:00:00:00:00:07" }
//! ```
//!
//! Unknown keys are refused, so that nobody relies on a setting that has no effect.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use packet::ethernet::MacAddr;
use packet::vxlan::{self, Vni};
use serde::Deserialize;

use super::neighbour::{Address, Neighbour};
use super::place::Place;
use super::table::Limits;
use crate::BUSY_POLL_MAX;
use crate::error::ConfigError;
use crate::tapbridge::QUEUES_MAX;
use crate::vhost_user;

/// Maximum number of remote endpoints that a frame is replicated to. One frame becomes this many
/// packets.
pub const REPLICATION_MAX: usize = 256;
/// Maximum number of remote endpoints of a network.
pub const REMOTES_MAX: usize = 4096;
/// Maximum number of learned entries that can be configured. An entry takes about 120 bytes, and up
/// to 400 if several places claim its address.
pub const ENTRIES_MAX: usize = 1 << 20;
/// Valid MTUs of a TAP: from the minimum of IPv4 (RFC 791) to the largest that fits
/// into a VXLAN packet.
pub const MTU: std::ops::RangeInclusive<u32> = 68..=65_450;

/// An endpoint: one address, one port, any number of networks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Own address on the underlay. It selects IPv4 or IPv6.
    pub local: IpAddr,
    /// UDP port of all endpoints.
    #[serde(default = "port")]
    pub port: u16,
    /// TTL or hop limit of outer packets.
    #[serde(default = "ttl")]
    pub ttl: u8,
    /// Sets Don't Fragment: packets that exceed the path MTU are answered with ICMP. Otherwise they
    /// are sent as fragments.
    #[serde(default = "yes")]
    pub df: bool,
    /// Whether outer packets have a UDP checksum.
    #[serde(default = "yes")]
    pub checksum: bool,
    /// Over IPv6, whether packets without a checksum are accepted (RFC 6935). Over IPv4 they always
    /// are.
    #[serde(default)]
    pub zero_checksum6: bool,
    /// How encapsulated GSO packets are passed to the kernel.
    #[serde(default)]
    pub hand_over: HandOver,
    /// Address where counters are served to Prometheus, `unix:PATH` or `ADDRESS:PORT`. It is
    /// interpreted by the caller.
    #[serde(default)]
    pub metrics: Option<String>,
    /// Number of queues of each TAP. Each queue number has its own thread.
    #[serde(default = "one")]
    pub queues: usize,
    /// How the TAPs are read.
    #[serde(default)]
    pub engine: Engine,
    /// Busy-polls for up to this many microseconds before sleeping, while polling keeps finding
    /// packets. It reduces latency and keeps the CPU busy. Not with [`Engine::Uring`].
    #[serde(default)]
    pub busy_poll: u32,
    /// CPUs of the threads, in the order of the queues; empty: all CPUs of the caller.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// Virtual networks, each with its own VNI and TAP.
    #[serde(default, rename = "network")]
    pub networks: Vec<NetworkConfig>,
}

/// How encapsulated GSO packets are passed to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandOver {
    /// Unsegmented, if that works and bypasses no packet filter. Otherwise segmented here.
    #[default]
    Auto,
    /// Unsegmented, through a second TAP with `TUN_F_UDP_TUNNEL_GSO`; an error if that is not
    /// possible. Packet filters of the underlay do not see the tunnel.
    TunnelGso,
    /// Segmented here, and sent through sockets with `UDP_SEGMENT`.
    UdpSegment,
}

impl std::str::FromStr for HandOver {
    type Err = String;

    fn from_str(text: &str) -> Result<HandOver, String> {
        match text {
            "auto" => Ok(HandOver::Auto),
            "tunnel-gso" => Ok(HandOver::TunnelGso),
            "udp-segment" => Ok(HandOver::UdpSegment),
            _ => Err("expected auto, tunnel-gso or udp-segment".to_owned()),
        }
    }
}

/// How the TAPs are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Frame by frame, with `epoll`.
    #[default]
    Epoll,
    /// In batches, with io_uring (Linux 6.7).
    Uring,
}

impl std::fmt::Display for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Engine::Epoll => "epoll",
            Engine::Uring => "uring",
        })
    }
}

impl std::str::FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Engine, String> {
        match text {
            "epoll" => Ok(Engine::Epoll),
            "uring" => Ok(Engine::Uring),
            _ => Err("expected epoll or uring".to_owned()),
        }
    }
}

/// A network: a VNI and its TAP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NetworkConfig {
    /// VXLAN network identifier, 24 bits.
    #[serde(deserialize_with = "vni")]
    pub vni: Vni,
    /// Name of the TAP, which is created. For a guest: `vhost-user:` and the path of the socket,
    /// which is created.
    pub tap: String,
    /// Namespace of the TAP: name, process ID or path; `None`: that of the caller. The code that
    /// creates the devices interprets it.
    #[serde(default)]
    pub netns: Option<String>,
    /// Addresses of the TAP, ADDRESS/LENGTH. The code that creates the devices interprets them.
    #[serde(default)]
    pub address: Vec<String>,
    /// MTU of the TAP; `None`: the smallest that the paths to the remote endpoints allow.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Remote endpoints. They may send, and they receive replicated frames.
    #[serde(default)]
    pub remotes: Vec<IpAddr>,
    /// Receivers of broadcast, multicast and unknown unicast; `None`: all remote endpoints, or the
    /// group.
    #[serde(default)]
    pub replicate: Option<Vec<IpAddr>>,
    /// A multicast group of the underlay that receives these frames instead. It is joined on the
    /// link with the endpoint's address.
    #[serde(default)]
    pub group: Option<IpAddr>,
    /// Whether packets from any remote endpoint are accepted.
    #[serde(default)]
    pub any_remote: bool,
    /// Whether addresses are learned from packets.
    #[serde(default = "yes")]
    pub learning: bool,
    /// Seconds after which a learned address or neighbour expires.
    #[serde(default = "ageing")]
    pub ageing: u32,
    /// Maximum number of learned addresses of all remote endpoints, and the same number for the
    /// TAP's side.
    #[serde(default = "entries")]
    pub max_learned: usize,
    /// Maximum number of learned addresses, and of learned neighbours, of one remote endpoint. The
    /// default is a quarter of all, so that no remote endpoint uses up the room of the others.
    #[serde(default)]
    pub max_learned_per_remote: Option<usize>,
    /// How many addresses a remote endpoint may take over within a minute from places that still
    /// send. Further addresses move to it once those places have been silent for ten seconds.
    #[serde(default = "moves")]
    pub max_moves: u32,
    /// Static FDB entries: hardware address = remote endpoint.
    #[serde(default)]
    pub fdb: BTreeMap<String, IpAddr>,
    /// Whether ARP requests and neighbour solicitations from the TAP are answered if the answer is
    /// known, instead of being flooded.
    #[serde(default)]
    pub neigh_suppress: bool,
    /// Maximum number of neighbours learned from ARP and neighbour discovery.
    #[serde(default = "entries")]
    pub max_neighbours: usize,
    /// Static neighbours: IP address = hardware address. Answers describe them as hosts, not as
    /// routers. Only requests without a VLAN tag are answered.
    #[serde(default)]
    pub neighbours: BTreeMap<String, String>,
}

/// The static entries of a network.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entries {
    /// Location of each hardware address.
    pub fdb: Vec<(MacAddr, IpAddr)>,
    /// Hardware address of each IP address.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
}

impl Entries {
    pub(super) fn places(&self) -> impl Iterator<Item = (MacAddr, Place)> {
        self.fdb.iter().map(|(mac, remote)| (*mac, Place::Remote(*remote)))
    }

    pub(super) fn neighbours(&self) -> impl Iterator<Item = (Address, Neighbour)> {
        let neighbours = self.neighbours.iter();
        neighbours.map(|(ip, mac)| (Address::untagged(*ip), Neighbour::host(*mac)))
    }
}

fn port() -> u16 {
    vxlan::PORT
}
fn ttl() -> u8 {
    64
}
fn yes() -> bool {
    true
}
fn one() -> usize {
    1
}
fn ageing() -> u32 {
    300
}
fn entries() -> usize {
    4096
}
fn moves() -> u32 {
    32
}

fn vni<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vni, D::Error> {
    let number = u32::deserialize(deserializer)?;
    Vni::new(number).map_err(serde::de::Error::custom)
}

fn wrong(key: impl Into<String>, problem: impl Into<String>) -> ConfigError {
    ConfigError::Value { key: key.into(), problem: problem.into() }
}

impl Config {
    /// Returns an endpoint without networks.
    pub fn new(local: IpAddr) -> Config {
        Config {
            local,
            port: port(),
            ttl: ttl(),
            df: true,
            checksum: true,
            zero_checksum6: false,
            hand_over: HandOver::Auto,
            metrics: None,
            queues: 1,
            engine: Engine::Epoll,
            busy_poll: 0,
            cpus: Vec::new(),
            networks: Vec::new(),
        }
    }

    /// Parses and validates the text of a file.
    ///
    /// # Errors
    /// If the syntax is wrong, with the line, or a value is invalid.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml_edit::de::from_str(text)
            .map_err(|error| ConfigError::Text(error.to_string().trim_end().to_owned()))?;
        config.validate()?;
        Ok(config)
    }

    /// Checks the values that their types do not.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        // The address is the source of outer packets, which must belong to one host.
        if self.local.is_unspecified() || self.local.is_multicast() {
            return Err(wrong("local", format!("{} is not a host address", self.local)));
        }
        if self.port == 0 {
            return Err(wrong("port", "must not be 0"));
        }
        // The kernel drops packets with a TTL of 0.
        if self.ttl == 0 {
            return Err(wrong("ttl", "must be 1 to 255"));
        }
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            return Err(wrong(
                "queues",
                format!("{} is not between 1 and {QUEUES_MAX}", self.queues),
            ));
        }
        if self.busy_poll > BUSY_POLL_MAX {
            let problem =
                format!("{} is not between 0 and {BUSY_POLL_MAX} microseconds", self.busy_poll);
            return Err(wrong("busy-poll", problem));
        }
        if self.busy_poll > 0 && self.engine == Engine::Uring {
            return Err(wrong(
                "busy-poll",
                "not available with io_uring, which sleeps in the kernel: use engine = \"epoll\"",
            ));
        }
        // An endpoint without a network would receive and drop everything.
        if self.networks.is_empty() {
            return Err(wrong("network", "no network is configured"));
        }
        let mut vnis = BTreeSet::new();
        let mut taps = BTreeSet::new();
        for network in &self.networks {
            network.validate(self.local)?;
            // The ring reads file descriptors; a guest's frames are in its memory.
            if network.guest().is_some() && self.engine == Engine::Uring {
                let problem = "uring reads TAP devices only, but a network has a vhost-user guest";
                return Err(wrong("engine", problem));
            }
            if network.guest().is_some() && self.queues > vhost_user::QUEUES_MAX {
                let problem = format!(
                    "{} is not between 1 and {}, the range with a guest",
                    self.queues,
                    vhost_user::QUEUES_MAX
                );
                return Err(wrong("queues", problem));
            }
            if !vnis.insert(network.vni) {
                return Err(wrong("vni", format!("{} is used twice", network.vni)));
            }
            // Two networks on one TAP would be bridged by it.
            if !taps.insert((&network.netns, &network.tap)) {
                return Err(wrong("tap", format!("{:?} is used twice", network.tap)));
            }
        }
        Ok(())
    }

    /// Returns how long a thread polls before it sleeps.
    pub fn busy_poll(&self) -> Duration {
        Duration::from_micros(self.busy_poll.into())
    }

    /// Returns the overhead of the tunnel in bytes: inner Ethernet, VXLAN, UDP and outer IP header.
    pub fn overhead(&self) -> u32 {
        if self.local.is_ipv4() { 50 } else { 70 }
    }
}

impl NetworkConfig {
    /// Returns a network without remote endpoints.
    pub fn new(vni: Vni, tap: impl Into<String>) -> NetworkConfig {
        NetworkConfig {
            vni,
            tap: tap.into(),
            netns: None,
            address: Vec::new(),
            mtu: None,
            remotes: Vec::new(),
            replicate: None,
            group: None,
            any_remote: false,
            learning: true,
            ageing: ageing(),
            max_learned: entries(),
            max_learned_per_remote: None,
            max_moves: moves(),
            fdb: BTreeMap::new(),
            neigh_suppress: false,
            max_neighbours: entries(),
            neighbours: BTreeMap::new(),
        }
    }

    /// Returns the receivers of replicated frames.
    pub fn replication(&self) -> &[IpAddr] {
        match (&self.replicate, &self.group) {
            (Some(replicate), _) => replicate,
            (None, Some(group)) => std::slice::from_ref(group),
            (None, None) => &self.remotes,
        }
    }

    /// Returns the limits of learned addresses.
    pub fn limits(&self) -> Limits {
        Limits {
            ageing: self.ageing,
            entries: self.max_learned,
            share: self.share_of(self.max_learned),
            moves: self.max_moves,
        }
    }

    /// Returns the share of a table that one remote endpoint may use.
    fn share_of(&self, entries: usize) -> usize {
        self.max_learned_per_remote.unwrap_or_else(|| (entries / 4).max(1))
    }

    /// Returns the limits of learned neighbours; `None`: neighbour suppression is off.
    pub fn neighbour_limits(&self) -> Option<Limits> {
        // The last claim for an address wins, as it does in hosts' own neighbour tables.
        let moves = u32::MAX;
        let (entries, share) = (self.max_neighbours, self.share_of(self.max_neighbours));
        let limits = Limits { ageing: self.ageing, entries, share, moves };
        self.neigh_suppress.then_some(limits)
    }

    /// Returns the static entries.
    ///
    /// # Errors
    /// If an entry is not a unicast hardware address, or not a host address.
    pub fn entries(&self) -> Result<Entries, ConfigError> {
        let key = |name: &str| format!("{name} of VNI {}", self.vni);
        let mac = |key: &str, text: &str| {
            let mac: MacAddr = text.parse().map_err(|e| wrong(key, format!("{e}")))?;
            match mac.is_unicast() {
                true => Ok(mac),
                false => Err(wrong(key, format!("{mac} is not a unicast address"))),
            }
        };
        let fdb = self.fdb.iter().map(|(text, remote)| Ok((mac(&key("fdb"), text)?, *remote)));
        let neighbour = |(ip, text): (&String, &String)| {
            let key = key("neighbours");
            let ip: IpAddr = ip
                .parse()
                .map_err(|_| wrong(&key, format!("{ip:?}: expected an IPv4 or IPv6 address")))?;
            if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
                return Err(wrong(&key, format!("{ip} is not a host address")));
            }
            Ok((ip, mac(&key, text)?))
        };
        let neighbours = self.neighbours.iter().map(neighbour);
        Ok(Entries {
            fdb: fdb.collect::<Result<_, _>>()?,
            neighbours: neighbours.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the path of the guest's socket, if the tenants' side is a guest.
    pub fn guest(&self) -> Option<&Path> {
        self.tap.strip_prefix(vhost_user::PREFIX).map(Path::new)
    }

    fn validate(&self, local: IpAddr) -> Result<(), ConfigError> {
        let key = |name: &str| format!("{name} of VNI {}", self.vni);
        if let Some(path) = self.guest() {
            let plain = |c: char| !c.is_control() && !"\"\\".contains(c);
            // The path is printed and passed to QEMU's comma-separated options.
            if !path.is_absolute() || !self.tap.chars().all(plain) {
                let problem = format!("{:?}: expected an absolute path without quotes", self.tap);
                return Err(wrong(key("tap"), problem));
            }
            // The guest configures its own address; overlane has no device to configure.
            if self.netns.is_some() || !self.address.is_empty() {
                let problem = "a guest has a socket: it takes no netns and no address";
                return Err(wrong(key("tap"), problem));
            }
        // The limits of `dev_valid_name`, and `:`, which separates addresses on the command line.
        } else if self.tap.is_empty() || self.tap.len() > 15 || self.tap.contains(['/', '%', ':']) {
            let problem = format!("{:?}: expected 1 to 15 bytes without / % and :", self.tap);
            return Err(wrong(key("tap"), problem));
        }
        if let Some(mtu) = self.mtu.filter(|mtu| !MTU.contains(mtu)) {
            let problem = format!("{mtu} is not between {} and {}", MTU.start(), MTU.end());
            return Err(wrong(key("mtu"), problem));
        }
        if let Some(group) = self.group {
            if !group.is_multicast() || group.is_ipv4() != local.is_ipv4() {
                // A group of another family could not be joined on the underlay's link.
                let problem =
                    format!("{group} is not a multicast group of the address family of {local}");
                return Err(wrong(key("group"), problem));
            }
            if self.replicate.is_some() {
                return Err(wrong(key("group"), "cannot be combined with replicate"));
            }
        }
        let replicate = self.replicate.iter().flatten();
        let all = self.remotes.iter().chain(replicate.clone()).chain(self.fdb.values());
        for remote in all {
            // One socket serves one address family.
            if remote.is_ipv4() != local.is_ipv4() {
                let problem = format!("{remote} is not of the address family of local = {local}");
                return Err(wrong(key("remotes"), problem));
            }
            if remote.is_multicast() {
                let problem = format!(
                    "{remote} is a multicast group. Set group to flood to it, and remotes or \
                        any-remote to select the accepted senders"
                );
                return Err(wrong(key("remotes"), problem));
            }
            if remote.is_unspecified() || *remote == local {
                return Err(wrong(
                    key("remotes"),
                    format!("{remote} is not a valid remote endpoint"),
                ));
            }
        }
        // An endpoint that receives frames but whose answers would be dropped is a mistake.
        let known = |remote: &&IpAddr| self.any_remote || self.remotes.contains(remote);
        let others = replicate.chain(self.fdb.values());
        if let Some(unknown) = others.into_iter().find(|remote| !known(remote)) {
            let problem = format!("{unknown} is not in remotes");
            return Err(wrong(key("replicate and fdb"), problem));
        }
        if self.remotes.len() > REMOTES_MAX {
            let problem =
                format!("{} entries are more than the limit of {REMOTES_MAX}", self.remotes.len());
            return Err(wrong(key("remotes"), problem));
        }
        if self.replication().len() > REPLICATION_MAX {
            let problem = format!(
                "{} entries are more than the limit of {REPLICATION_MAX}",
                self.replication().len()
            );
            return Err(wrong(key("replicate"), problem));
        }
        if self.remotes.is_empty() && !self.any_remote {
            return Err(wrong(
                key("remotes"),
                "no remote endpoint is configured and any-remote is not set",
            ));
        }
        // Nothing could be learned from any remote: `learning = false` says that openly.
        if self.max_learned_per_remote == Some(0) {
            return Err(wrong(
                key("max-learned-per-remote"),
                "must not be 0: to disable learning, set learning = false",
            ));
        }
        // A share above the whole would never apply.
        if let Some(share) = self.max_learned_per_remote.filter(|share| *share > self.max_learned) {
            let problem = format!("{share} exceeds max-learned, which is {}", self.max_learned);
            return Err(wrong(key("max-learned-per-remote"), problem));
        }
        for (name, most) in
            [("max-learned", self.max_learned), ("max-neighbours", self.max_neighbours)]
        {
            // The table is allocated as it grows: this bounds its memory.
            if most > ENTRIES_MAX {
                return Err(wrong(key(name), format!("{most} exceeds the limit of {ENTRIES_MAX}")));
            }
        }
        // Neighbours are used to answer requests only, so they would have no effect.
        if !self.neighbours.is_empty() && !self.neigh_suppress {
            return Err(wrong(key("neighbours"), "static neighbours need neigh-suppress = true"));
        }
        self.entries().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        local = "10.0.0.1"
        queues = 2
        engine = "uring"
        cpus = [0, 1]
        [[network]]
        vni = 10
        tap = "tap0"
        remotes = ["10.0.0.2", "10.0.0.3"]
        replicate = ["10.0.0.2"]
        fdb = { "02:00:00:00:00:07" = "10.0.0.3" }
        [[network]]
        vni = 11
        tap = "tap1"
        any-remote = true
    "#;

    #[test]
    fn a_file_says_what_it_must_and_the_rest_has_defaults() {
        let config = Config::parse(WHOLE).unwrap();
        assert_eq!((config.port, config.ttl, config.df, config.overhead()), (4789, 64, true, 50));
        assert_eq!((config.engine, &config.cpus[..]), (Engine::Uring, &[0, 1][..]));
        let network = &config.networks[0];
        assert_eq!(network.replication(), ["10.0.0.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(network.entries().unwrap().fdb[0].0, MacAddr([2, 0, 0, 0, 0, 7]));
        assert_eq!(network.limits(), Limits { ageing: 300, entries: 4096, share: 1024, moves: 32 });
    }

    #[test]
    fn problems_are_named() {
        for (from, to, named) in [
            ("queues = 2", "queues = 0", "queues"),
            ("queues = 2", "busy-poll = 10001", "busy-poll"),
            ("queues = 2", "queues = 2\nbusy-poll = 1", "busy-poll"),
            ("queues = 2", "arp-suppression = true", "arp-suppression"),
            (
                "vni = 11",
                "vni = 11\nneighbours = { \"10.1.0.9\" = \"02:00:00:00:00:09\" }",
                "neigh-suppress",
            ),
            (
                "vni = 11",
                "vni = 11\nneighbours = { \"ten\" = \"02:00:00:00:00:09\" }\nneigh-suppress = true",
                "\"ten\"",
            ),
            (
                "vni = 11",
                "vni = 11\nneighbours = { \"ff02::1\" = \"02:00:00:00:00:09\" }\nneigh-suppress = true",
                "ff02::1 is not a host address",
            ),
            (
                "vni = 11",
                "vni = 11\nneighbours = { \"10.1.0.9\" = \"03:00:00:00:00:09\" }\nneigh-suppress = true",
                "03:00:00:00:00:09 is not a unicast",
            ),
            ("vni = 11", "vni = 11\nmax-neighbours = 99999999", "max-neighbours"),
            ("vni = 11", "vni = 11\nmax-learned-per-remote = 0", "max-learned-per-remote"),
            ("vni = 11", "vni = 11\nmax-learned-per-remote = 4097", "max-learned-per-remote"),
            (
                "vni = 11",
                "vni = 11\nmax-learned = 9\nmax-learned-per-remote = 10",
                "max-learned-per-remote",
            ),
            ("vni = 11", "vni = 10", "twice"),
            ("vni = 11", "vni = 16777216", "16777216"),
            ("tap1", "tap0", "twice"),
            ("any-remote = true", "", "remotes of VNI 11"),
            ("[\"10.0.0.2\"]", "[\"10.0.0.4\"]", "10.0.0.4 is not in remotes"),
            ("[\"10.0.0.2\", ", "[\"fd00::1\", ", "fd00::1"),
            ("[\"10.0.0.2\", ", "[\"239.1.1.1\", ", "multicast group"),
            ("vni = 11", "vni = 11\ngroup = \"10.0.0.9\"", "not a multicast group"),
            ("vni = 11", "vni = 11\ngroup = \"ff02::9\"", "not a multicast group"),
            ("vni = 10", "vni = 10\ngroup = \"239.1.1.1\"", "cannot be combined with replicate"),
            ("02:00:00:00:00:07", "03:00:00:00:00:07", "unicast"),
            ("02:00:00:00:00:07", "02:00", "hardware address"),
            ("local = \"10.0.0.1\"", "local = \"host\"", "local"),
        ] {
            assert!(WHOLE.contains(from), "{from}");
            let error = Config::parse(&WHOLE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(named), "{from} -> {to}: {error}");
        }
    }
}
