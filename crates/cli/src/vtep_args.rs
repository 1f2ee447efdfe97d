//! The arguments of the verb `vtep`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use datapath::vtep::HandOver;
use packet::vxlan::Vni;

/// `overlane vtep`: one network from arguments, or several from a file.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Runs in the foreground until Ctrl-C or SIGTERM; SIGUSR1 prints the counters. The devices disappear \
with the process. When ready, it prints a line on standard output and notifies systemd (sd_notify).

EXAMPLES
  overlane vtep --vni 42 --tap tap0:10.1.0.1/24 --local 192.0.2.1 --remote 192.0.2.2
  overlane vtep --config /etc/overlane/vtep.toml")]
pub struct Vtep {
    #[command(subcommand)]
    pub verb: Option<VtepVerb>,
    /// Read the configuration from a TOML file; excludes all other options
    ///
    /// SIGHUP reloads the file.
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub config: Option<PathBuf>,
    /// VXLAN network identifier, 0 to 16777215
    #[arg(long, value_name = "VNI", required_unless_present = "config")]
    pub vni: Option<Vni>,
    /// TAP device to create for the tenants, with its addresses: tap0:10.1.0.1/24
    ///
    /// Or vhost-user:PATH for a virtual machine: overlane creates the socket, and the guest's QEMU
    /// connects to it.
    #[arg(
        long,
        value_name = "TAP[:ADDR/LEN,…]|vhost-user:PATH",
        required_unless_present = "config"
    )]
    pub tap: Option<String>,
    /// Network namespace of the TAP device: name, process ID or path [default: current]
    #[arg(long, value_name = "NETNS")]
    pub netns: Option<String>,
    /// Underlay address of this endpoint, IPv4 or IPv6
    #[arg(long, value_name = "ADDRESS", required_unless_present = "config")]
    pub local: Option<IpAddr>,
    /// Underlay address of a remote endpoint; may be repeated
    #[arg(long, value_name = "ADDRESS", required_unless_present_any = ["config", "any_remote"])]
    pub remote: Vec<IpAddr>,
    /// Remote endpoint that receives flooded packets; may be repeated [default: every --remote]
    ///
    /// Broadcast, multicast and packets to unknown addresses are flooded.
    #[arg(long, value_name = "ADDRESS")]
    pub replicate: Vec<IpAddr>,
    /// Flood to this multicast group of the underlay; joined on the link with --local
    #[arg(long, value_name = "ADDRESS", conflicts_with = "replicate")]
    pub group: Option<IpAddr>,
    /// Accept packets from any source address
    #[arg(long)]
    pub any_remote: bool,
    /// Static forwarding entry, such as 02:00:00:00:00:07=10.0.0.3; may be repeated
    #[arg(long, value_name = "MAC=REMOTE")]
    pub fdb: Vec<String>,
    /// Do not learn addresses from packets
    #[arg(long)]
    pub no_learning: bool,
    /// Seconds until a learned address or neighbour expires [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = crate::quantity::whole_seconds)]
    pub ageing: Option<u32>,
    /// Maximum number of learned addresses, local and remote each [default: 4096]
    #[arg(long, value_name = "N")]
    pub max_learned: Option<usize>,
    /// Maximum learned addresses, and neighbours, per remote endpoint [default: a quarter of all]
    #[arg(long, value_name = "N")]
    pub max_learned_per_remote: Option<usize>,
    /// Addresses per minute that a remote may take from endpoints that still send [default: 32]
    #[arg(long, value_name = "N")]
    pub max_moves: Option<u32>,
    /// Answer ARP and neighbour solicitations from learned neighbours instead of flooding them
    #[arg(long)]
    pub neigh_suppress: bool,
    /// Static neighbour, such as 10.1.0.7=02:00:00:00:00:07; may be repeated
    #[arg(long, value_name = "IP=MAC", requires = "neigh_suppress")]
    pub neighbour: Vec<String>,
    /// Maximum number of learned neighbours [default: 4096]
    #[arg(long, value_name = "N", requires = "neigh_suppress")]
    pub max_neighbours: Option<usize>,
    /// UDP port of all endpoints
    #[arg(long, default_value_t = packet::vxlan::PORT, value_name = "PORT")]
    pub port: u16,
    /// MTU of the TAP device in bytes [default: derived from the paths to the remotes]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// TTL or hop limit of outer packets
    #[arg(long, default_value_t = 64, value_name = "HOPS")]
    pub ttl: u8,
    /// Fragment packets that exceed the path MTU [default: answer with ICMP]
    #[arg(long)]
    pub no_df: bool,
    /// Send no outer UDP checksums; slower, because the kernel then segments no GSO packets
    #[arg(long)]
    pub no_checksum: bool,
    /// Over IPv6, accept packets without outer UDP checksum
    #[arg(long)]
    pub zero_checksum6: bool,
    /// Serve Prometheus metrics at unix:PATH or ADDRESS:PORT, such as 127.0.0.1:9472
    #[arg(long, value_name = "PLACE")]
    pub metrics: Option<String>,
    /// How to pass GSO packets to the kernel: tunnel-gso, udp-segment or auto
    ///
    /// tunnel-gso passes them whole through a second TAP device (Linux 6.17); packet filters of
    /// this host then do not see the tunnel. udp-segment segments them at the socket. auto uses
    /// tunnel-gso where it works and bypasses no packet filter.
    #[arg(long, default_value = "auto", value_name = "HOW")]
    pub hand_over: HandOver,
    /// Busy-poll up to N us (0 to 10000) before sleeping, while that keeps finding packets
    ///
    /// Lower latency, at the cost of CPU time.
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS")]
    pub busy_poll: u32,
    /// Queues of the TAP device, one thread each; 1 to 256
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub queues: usize,
}

/// `overlane vtep …`
#[derive(Debug, Subcommand)]
pub enum VtepVerb {
    /// Show status and counters of the endpoints in this network namespace
    Status(VtepStatus),
}

/// `overlane vtep status`
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLES
  overlane vtep status
  overlane vtep status --json")]
pub struct VtepStatus {
    /// Print JSON (see schema/vtep-status.schema.json)
    #[arg(long)]
    pub json: bool,
}
