//! The arguments of the verb `probe`.

use std::path::PathBuf;

use clap::Args;

use crate::doctor_args::Journal;

/// `overlane probe`
#[derive(Debug, Args)]
#[command(after_help = "\
The peer runs `overlane measure serve` as root. Packets of every kind that an offload touches are \
sent in both directions and compared byte for byte, before the receiver's network stack drops \
damaged ones. Each end sends at most --rate bytes per second, to the peer only.

Without --yes nothing is changed: settings that can be the cause are ranked. With --yes, they are \
switched off one at a time through the journal and restored at once: on this machine, and on the \
peer if it serves with --allow-settings. On some network cards this interrupts the link for \
seconds, also for your own connection.

Exit codes: 0 no packet was damaged or lost, 10 findings, 1 failed, 2 wrong usage.

EXAMPLES
  overlane probe 10.244.1.7 --token token
  overlane probe 192.0.2.7 --token token --quick --json
  overlane probe 192.0.2.7 --token token --yes
  overlane probe 10.244.1.7 --token token --yes --hop eth0 --hop router:eth1")]
pub struct Probe {
    /// Address of the other machine, where `measure serve` listens
    #[arg(value_name = "ADDR[:PORT]")]
    pub address: String,
    /// File with the secret shared with the server
    ///
    /// At least 128 random bits (head -c 32 /dev/urandom | base64), with mode 0640 or stricter.
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
    /// Device that the path must use; otherwise the probe fails
    #[arg(long, value_name = "DEV")]
    pub via: Option<String>,
    /// Send only the most important classes of packets
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// Send all combinations, instead of each pair of properties
    #[arg(long)]
    pub full: bool,
    /// Seed that selects the combinations
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Maximum bytes per second that each end sends
    #[arg(long, default_value_t = probe::message::RATE, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(50_000..=100_000_000))]
    pub rate: u32,
    /// Destination port of packets, which the packets of a tunnel with another port share
    ///
    /// Beside it, its neighbour and ports 4789, 8472 and 6081 are tested.
    #[arg(long, default_value_t = probe::options::OWN_PORT, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65_534))]
    pub port: u16,
    /// Find the setting that causes damage, by switching settings off and on, here and where allowed
    #[arg(long)]
    pub yes: bool,
    /// Device between the ends, on this machine, whose settings may be the cause, too; repeatable
    ///
    /// In the order of packets to ADDR, for example the port of a bridge and the NIC behind it.
    /// NETNS is a name, process ID or path of a network namespace. For a device of another machine,
    /// run `overlane probe --yes` there, towards the same end.
    #[arg(long = "hop", value_name = "[NETNS:]DEV")]
    pub hops: Vec<String>,
    /// Print JSON (see schema/probe.schema.json)
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub journal: Journal,
}
