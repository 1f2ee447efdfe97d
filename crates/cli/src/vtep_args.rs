//! Arguments of `overlane vtep`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use datapath::vtep::HandOver;
use packet::vxlan::Vni;

/// `overlane vtep`: one network by arguments, or any number by a file.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Vtep {
    /// Something else than to be an endpoint.
    #[command(subcommand)]
    pub verb: Option<VtepVerb>,
    /// Read everything from this file (TOML); SIGHUP reads it again. No other
    /// argument goes with it
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub config: Option<PathBuf>,
    /// VXLAN network identifier, 0 to 16777215
    #[arg(long, value_name = "VNI", required_unless_present = "config")]
    pub vni: Option<Vni>,
    /// Device of the tenants, created by this, with its addresses: tap0:10.1.0.1/24; or a
    /// guest, whose QEMU connects to the socket that this makes: vhost-user:/run/guest.sock
    #[arg(
        long,
        value_name = "TAP[:ADDR/LEN,…]|vhost-user:PATH",
        required_unless_present = "config"
    )]
    pub tap: Option<String>,
    /// Network namespace of the device: name, process id or path [default: this one]
    #[arg(long, value_name = "NETNS")]
    pub netns: Option<String>,
    /// Own address on the underlay, IPv4 or IPv6
    #[arg(long, value_name = "ADDRESS", required_unless_present = "config")]
    pub local: Option<IpAddr>,
    /// A remote end; may be given several times
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["config", "any_remote"])]
    pub remote: Vec<IpAddr>,
    /// A remote end that gets broadcast, multicast and packets to unknown addresses; may be
    /// given several times [default: every --remote]
    #[arg(long, value_name = "ADDRESS")]
    pub replicate: Vec<IpAddr>,
    /// Multicast group of the underlay that gets these instead, joined on the link that has
    /// --local
    #[arg(long, value_name = "ADDRESS", conflicts_with = "replicate")]
    pub group: Option<IpAddr>,
    /// Let anyone send
    #[arg(long)]
    pub any_remote: bool,
    /// Where a hardware address is, as 02:00:00:00:00:07=10.0.0.3; may be given several times
    #[arg(long, value_name = "MAC=REMOTE")]
    pub fdb: Vec<String>,
    /// Learn no addresses from packets
    #[arg(long)]
    pub no_learning: bool,
    /// Seconds after which a learned address or neighbour is forgotten
    #[arg(long, value_name = "SECONDS")]
    pub ageing: Option<u32>,
    /// Most learned addresses
    #[arg(long, value_name = "N")]
    pub max_learned: Option<usize>,
    /// Most learned addresses, and most learned neighbours, of one remote end [default: a quarter
    /// of all]
    #[arg(long, value_name = "N")]
    pub max_learned_per_remote: Option<usize>,
    /// How many addresses a remote end may take within a minute from places that still send
    #[arg(long, value_name = "N")]
    pub max_moves: Option<u32>,
    /// Answer ARP requests and IPv6 neighbour solicitations of the device, where the answer
    /// is known from ARP and neighbour discovery that has passed, instead of flooding them
    #[arg(long)]
    pub neigh_suppress: bool,
    /// Who has an IP address, as 10.1.0.7=02:00:00:00:00:07; may be given several times
    #[arg(long, value_name = "IP=MAC", requires = "neigh_suppress")]
    pub neighbour: Vec<String>,
    /// Most learned neighbours
    #[arg(long, value_name = "N", requires = "neigh_suppress")]
    pub max_neighbours: Option<usize>,
    /// UDP port of all ends
    #[arg(long, default_value_t = packet::vxlan::PORT, value_name = "PORT")]
    pub port: u16,
    /// MTU of the device in bytes [default: what the paths to the remote ends allow]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// TTL or hop limit
    #[arg(long, default_value_t = 64, value_name = "HOPS")]
    pub ttl: u8,
    /// Send packets that are too long for the path in fragments, instead of answering them
    /// with ICMP
    #[arg(long)]
    pub no_df: bool,
    /// Send no outer UDP checksums; slower, since the kernel then cuts no GSO packets
    #[arg(long)]
    pub no_checksum: bool,
    /// Over IPv6, receive packets without outer UDP checksum
    #[arg(long)]
    pub zero_checksum6: bool,
    /// Tell the counters to Prometheus at this Unix socket or address: unix:/run/vtep.metrics,
    /// 127.0.0.1:9472
    #[arg(long, value_name = "PLACE")]
    pub metrics: Option<String>,
    /// How GSO packets get to the kernel: whole by a second TAP device (tunnel-gso, Linux
    /// 6.17; packet filters of this host do not see the tunnel then), cut by sockets
    /// (udp-segment), or whole where that works and passes no filter by (auto)
    #[arg(long, default_value = "auto", value_name = "HOW")]
    pub hand_over: HandOver,
    /// Microseconds for which a thread looks again before it sleeps, as long as that has been
    /// of use: packets wait less, at a CPU's cost; 0 to 10000
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS")]
    pub busy_poll: u32,
    /// Queues of the device, 1 to 256; each has its thread
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub queues: usize,
}

/// `overlane vtep …`
#[derive(Debug, Subcommand)]
pub enum VtepVerb {
    /// What the endpoints of this network namespace have counted
    Status(VtepStatus),
}

/// `overlane vtep status`
#[derive(Debug, Args)]
pub struct VtepStatus {
    /// As JSON
    #[arg(long)]
    pub json: bool,
}
