//! The command line of `overlane tapbridge`.

use clap::{Args, ValueEnum};

/// `overlane tapbridge`
#[derive(Debug, Args)]
#[command(
    after_help = "Runs in the foreground until Ctrl-C or SIGTERM; both print the counters and are success, SIGUSR1 prints them and goes on. The devices go with the process. A guest's QEMU connects to a socket by '-chardev socket,id=c,path=PATH -netdev vhost-user,id=n,chardev=c' and shares its memory by '-object memory-backend-memfd,id=m,share=on,size=SIZE -machine memory-backend=m'. Readiness: a line on standard output, and sd_notify for systemd."
)]
pub struct TapBridge {
    /// Left device, created by this, with its addresses: tap0:192.168.64.64/24; or a guest,
    /// whose QEMU connects to the socket that this makes: vhost-user:/run/guest.sock
    #[arg(long, value_name = "TAP[:ADDR/LEN,…]|vhost-user:PATH")]
    pub left: String,
    /// Right device or guest, likewise
    #[arg(long, value_name = "TAP[:ADDR/LEN,…]|vhost-user:PATH")]
    pub right: String,
    /// Exchange the network parts of IPv4 addresses between the two sides' networks, and
    /// answer ARP: a machine reaches its own other device through both
    #[arg(long)]
    pub netmap: bool,
    /// Network namespace of the left device: name, process id or path [default: this one]
    #[arg(long, value_name = "NETNS")]
    pub left_netns: Option<String>,
    /// Network namespace of the right device, likewise
    #[arg(long, value_name = "NETNS")]
    pub right_netns: Option<String>,
    /// Queues of each device, 1 to 256, with a guest 128; each pair has its thread
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub queues: usize,
    /// What moves the frames: bpf (tc redirects them in the kernel; both devices in one
    /// namespace), epoll, uring (epoll's work with frames read by batches; Linux 6.7), or auto
    /// for the better of the first two that runs here
    #[arg(long, default_value = "auto", value_name = "ENGINE")]
    pub engine: String,
    /// Microseconds for which a thread looks again before it sleeps, as long as that has been
    /// of use: packets wait less, at a CPU's cost; 0 to 10000, not with --engine uring
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS")]
    pub busy_poll: u32,
    /// Give and take cut packets with finished checksums only, on one side or both
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "both", value_name = "SIDE")]
    pub no_offload: Option<NoOffload>,
    /// MTU of both devices in bytes, 68 to 65521; guests have their own [default: 1500]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
}

/// `--no-offload`
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NoOffload {
    /// Left device
    Left,
    /// Right device
    Right,
    /// Both devices
    Both,
}
