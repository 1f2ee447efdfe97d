//! The arguments of the verb `tapbridge`.

use clap::{Args, ValueEnum};

/// `overlane tapbridge`
#[derive(Debug, Args)]
#[command(after_help = "\
Runs in the foreground until Ctrl-C or SIGTERM, then prints the counters and exits with 0; SIGUSR1 \
prints them without exiting. The devices disappear with the process. When ready, it prints a line \
on standard output and notifies systemd (sd_notify).

A guest's QEMU connects to a socket by '-chardev socket,id=c,path=PATH -netdev \
vhost-user,id=n,chardev=c' and shares its memory by '-object \
memory-backend-memfd,id=m,share=on,size=SIZE -machine memory-backend=m'.

EXAMPLES
  overlane tapbridge --left tap0:192.168.64.1/24 --right tap1:192.168.65.1/24 --netmap
  overlane tapbridge --left tap0:10.1.0.1/24 --right vhost-user:/run/guest.sock")]
pub struct TapBridge {
    /// Left side: a TAP device to create, with its addresses: tap0:192.168.64.64/24
    ///
    /// Or vhost-user:PATH for a virtual machine: overlane creates the socket, and the guest's QEMU
    /// connects to it.
    #[arg(long, value_name = "TAP[:ADDR/LEN,…]|vhost-user:PATH")]
    pub left: String,
    /// Right side, in the same form
    #[arg(long, value_name = "TAP[:ADDR/LEN,…]|vhost-user:PATH")]
    pub right: String,
    /// Translate IPv4 addresses between the networks of both sides, and answer ARP
    ///
    /// Only the network part of an address changes. A machine can then reach its own other device
    /// through both.
    #[arg(long)]
    pub netmap: bool,
    /// Network namespace of the left device: name, process ID or path [default: current]
    #[arg(long, value_name = "NETNS")]
    pub left_netns: Option<String>,
    /// Network namespace of the right device [default: current]
    #[arg(long, value_name = "NETNS")]
    pub right_netns: Option<String>,
    /// Queues per device, one thread per pair; 1 to 256, with a guest 1 to 128
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub queues: usize,
    /// Forwarding engine: bpf, epoll, uring or auto
    ///
    /// bpf redirects frames in the kernel with tc; both devices must be in one namespace. epoll
    /// reads frames one by one. uring reads them in batches (Linux 6.7). auto chooses bpf where
    /// it works, otherwise epoll.
    #[arg(long, default_value = "auto", value_name = "ENGINE")]
    pub engine: String,
    /// Busy-poll up to N us (0 to 10000) before sleeping, while that keeps finding packets
    ///
    /// Lower latency, at the cost of CPU time. Not with --engine uring.
    #[arg(long, default_value_t = 0, value_name = "MICROSECONDS")]
    pub busy_poll: u32,
    /// Disable GSO and checksum offload on one side or both
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "both", value_name = "SIDE")]
    pub no_offload: Option<NoOffload>,
    /// MTU of both devices in bytes, 68 to 65521; not for guests [default: 1500]
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
