//! The arguments of the verb `accel`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::metrics::ListenAddress;

/// `overlane accel …`
#[derive(Debug, Subcommand)]
pub enum AccelVerb {
    /// Accelerate VXLAN devices, in the background
    On(AccelRun),
    /// Give VXLAN devices back to the slow path
    Off(AccelDevices),
    /// Accelerate VXLAN devices until Ctrl-C or SIGTERM
    Run(AccelServe),
    /// Show what is accelerated, what is not and why, and what became of packets
    Status(AccelStatus),
    /// Say what would be accelerated here and what share of the traffic, changing nothing
    Check(AccelCheck),
    /// Explain why something stays slow, by the code that `status` shows
    Explain(AccelExplain),
}

/// `overlane accel on`, `off`, `run`
#[derive(Debug, Args)]
#[command(
    after_help = "Whatever cannot be accelerated goes on by the slow path; `overlane accel status` says why. When the process ends, by any cause, the kernel detaches the fast path. Readiness of `run`: a line on standard output, and sd_notify for systemd."
)]
pub struct AccelDevices {
    /// VXLAN device; one in another namespace, over this one's NICs: NETNS/DEV
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "DEV")]
    pub device: Option<String>,
    /// Every VXLAN device of the namespace, and those in others over its NICs (Docker
    /// Swarm's), those to come among them
    #[arg(long)]
    pub all: bool,
    /// Network namespace of the devices: name, process id or path [default: this one]
    #[arg(long, value_name = "NETNS")]
    pub netns: Option<String>,
}

/// `overlane accel on`, `run`
#[derive(Debug, Args)]
pub struct AccelRun {
    /// Which
    #[command(flatten)]
    pub devices: AccelDevices,
    /// Forwarding entries to have room for, those of all devices together; addresses that
    /// find none go by the slow path [default: 65536]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub max_entries: Option<u32>,
    /// Connections through packet filters to have room for; the oldest makes room
    /// [default: 100000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub max_flows: Option<u32>,
    /// Have packets that come to packet filters go by the slow path, all of them: counters of
    /// rules and of conntrack count each then
    #[arg(long)]
    pub accounting: bool,
}

/// `overlane accel status`
#[derive(Debug, Args)]
pub struct AccelStatus {
    /// Network namespace of the devices: name, process id or path [default: this one]
    #[arg(long, value_name = "NETNS")]
    pub netns: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `overlane accel explain`
#[derive(Debug, Args)]
pub struct AccelExplain {
    /// Code, such as AX201 [default: list all]
    #[arg(value_name = "CODE")]
    pub code: Option<String>,
    /// Print JSON (see schema/accel-explain.schema.json)
    #[arg(long)]
    pub json: bool,
}

/// `overlane accel run`
#[derive(Debug, Args)]
pub struct AccelServe {
    /// Which, and with how much room
    #[command(flatten)]
    pub run: AccelRun,
    /// Serve counters for Prometheus, /healthz and /readyz by HTTP at unix:PATH or
    /// ADDRESS:PORT, without authentication
    #[arg(long, value_name = "PLACE", value_parser = place)]
    pub metrics: Option<ListenAddress>,
    /// Append events to a file, a line of JSON each; `-`: to standard output, in place of the
    /// line `ready` (see schema/accel-event.schema.json)
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Take over from the process that serves the namespace, if there is one: it ends once
    /// this one's fast path is in force
    #[arg(long)]
    pub takeover: bool,
    /// When another process has taken over, wait for SIGTERM before ending: for supervisors
    /// that restart what ends, such as Kubernetes
    #[arg(long)]
    pub linger: bool,
}

fn place(text: &str) -> Result<ListenAddress, String> {
    text.parse()
}

/// `overlane accel check`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 all of the traffic seen could take the fast path, 1 some of it or of the devices stays slow, 2 wrong usage or bad input."
)]
pub struct AccelCheck {
    /// Which
    #[command(flatten)]
    pub devices: AccelDevices,
    /// Seconds that traffic is counted for; 0: not at all
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub seconds: u32,
    /// Print JSON (see schema/accel-check.schema.json)
    #[arg(long)]
    pub json: bool,
}
