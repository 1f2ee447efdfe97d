//! The arguments of the verb `trace`.

use clap::Args;

/// `overlane trace`
#[derive(Debug, Args)]
#[command(
    after_help = "Packets are told when their journey has ended. Needs CAP_BPF and CAP_PERFMON (root), and a kernel with BTF.\n\nEXAMPLES\n  overlane trace --flow '10.1.0.11 -> 10.1.0.12:80/tcp' --count 10\n  overlane trace --drops-only\n  overlane trace --flow 10.1.0.0/24 --slower-than 1ms --json"
)]
pub struct Trace {
    /// Only packets of this flow, both directions, by inner or outer addresses; again for more
    ///
    /// FROM -> TO, or one end: ADDRESS[/PREFIX][:PORT], [IPV6]:PORT, or *; with /tcp, /udp or
    /// /icmp at the end.
    #[arg(long, value_name = "FLOW")]
    pub flow: Vec<String>,
    /// Only in these network namespaces: names, process ids or paths
    #[arg(long, default_value = "all", value_name = "all|NETNS,…")]
    pub netns: String,
    /// Only at devices of this name
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Only in VXLAN tunnels of this network identifier
    #[arg(long, value_name = "VNI")]
    pub vni: Option<u32>,
    /// Only packets that are dropped, where they are dropped
    #[arg(long)]
    pub drops_only: bool,
    /// Only packets that took longer than this from their first place to their last
    #[arg(long, value_name = "TIME", conflicts_with = "drops_only")]
    pub slower_than: Option<humantime::Duration>,
    /// One packet in so many, by chance: 1/1000
    #[arg(long, value_name = "1/N", default_value = "1/1")]
    pub sample: String,
    /// End after so many packets
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "TIME")]
    pub duration: Option<humantime::Duration>,
    /// A line of JSON a packet
    #[arg(long)]
    pub json: bool,
}
