//! `overlane tapbridge`: bridges two TAP devices or guests in user space.

use std::fmt::Write;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::time::Duration;

use daemon::confinement::forwarding::{self, Sockets};
use daemon::confinement::{self, Rights};
use daemon::notify::notify;
use daemon::signals::{Signals, take, wait_beside};
use datapath::BUSY_POLL_MAX;
use datapath::counters::Counters;
use datapath::tapbridge::netmap::{Address, Netmap};
use datapath::tapbridge::{Bridge, BridgePort, Engine, EngineChoice, Running, Side};
use datapath::vhost_user::GuestWatcher;
use sys::tap::Offload;

use crate::bridge_end::BridgeEnd;
use crate::exit::{Exit, usage};
use crate::named_netns::netns;
use crate::output::print;
use crate::tap_device::{MTU, TapDevice};
use crate::tapbridge_args::{NoOffload, TapBridge};

/// Bridges two TAP devices or guests until a signal ends it.
///
/// # Errors
/// Wrong usage; devices and sockets that cannot be created (`EPERM`, `EBUSY`); an engine that
/// cannot run on this machine.
pub fn run(arguments: &TapBridge) -> anyhow::Result<Exit> {
    let asked = |argument, text: &str| BridgeEnd::from_str(text).map_err(|e| usage(argument, e));
    let left = asked("--left", &arguments.left)?;
    let right = asked("--right", &arguments.right)?;
    let engine = EngineChoice::from_str(&arguments.engine).map_err(|e| usage("--engine", e))?;
    // Queues are paired, so the side with fewer queues decides.
    let most = left.queues_max().min(right.queues_max());
    if !(1..=most).contains(&arguments.queues) {
        return Err(usage("--queues", format!("{} is not 1 to {most}", arguments.queues)));
    }
    for (argument, side, netns) in [
        ("--left-netns", &left, &arguments.left_netns),
        ("--right-netns", &right, &arguments.right_netns),
    ] {
        if netns.is_some() && side.tap().is_none() {
            return Err(usage(argument, "a guest has no network namespace: its socket is a file"));
        }
    }
    if arguments.busy_poll > BUSY_POLL_MAX {
        let problem = format!("{} is not 0 to {BUSY_POLL_MAX}", arguments.busy_poll);
        return Err(usage("--busy-poll", problem));
    }
    if arguments.busy_poll > 0 && engine == EngineChoice::Only(Engine::Uring) {
        return Err(usage("--busy-poll", "not with --engine uring, which waits in the kernel"));
    }
    if let Some(mtu) = arguments.mtu.filter(|mtu| !MTU.contains(mtu)) {
        return Err(usage("--mtu", format!("{mtu} is not {} to {}", MTU.start(), MTU.end())));
    }
    let netmap = arguments.netmap.then(|| netmap(&left, &right)).transpose()?;
    let namespaces = [
        netns("--left-netns", arguments.left_netns.as_deref())?,
        netns("--right-netns", arguments.right_netns.as_deref())?,
    ];
    // A device cannot be bridged with itself.
    if left.name() == right.name() && namespaces[0].inode() == namespaces[1].inode() {
        let problem = format!("{:?} is the left device in the same namespace", right.name());
        return Err(usage("--right", problem));
    }

    // From here on, a signal stops the bridge cleanly instead of killing the process.
    let signals = Signals::new()?;
    let open = |asked: &BridgeEnd, netns, side| {
        let offload = offload(arguments.no_offload, side);
        asked.open(arguments.queues, offload, netns, arguments.mtu)
    };
    let bridge = Bridge::new(
        open(&left, &namespaces[0], Side::Left)?,
        open(&right, &namespaces[1], Side::Right)?,
        netmap,
    )?
    .polling(Duration::from_micros(arguments.busy_poll.into()));
    let guests: Vec<GuestWatcher> = Side::BOTH
        .into_iter()
        .filter_map(|side| match bridge.port(side) {
            BridgePort::Guest(guest) => Some(guest.watcher()),
            BridgePort::Tap(_) => None,
        })
        .collect();
    let offload = Side::BOTH.map(|side| bridge.port(side).offload());
    let ready = bridge.engine(engine)?;
    // From here on, open descriptors suffice. Threads inherit the reduced rights, so drop them
    // first.
    confinement::prepare()?;
    let rights = Rights::none()?;
    let running = ready.start()?;
    // libbpf reads the number of CPUs from a file once; do it before confinement.
    running.counters(Side::Left);
    let sockets = Sockets { guests: !guests.is_empty(), ..Sockets::default() };
    forwarding::confine(&rights, &sockets)?;

    let mut line = format!(
        "ready: {} and {} are joined, engine {}, {} queue{}, offload: {}",
        left.name(),
        right.name(),
        running.engine(),
        arguments.queues,
        if arguments.queues == 1 { "" } else { "s" },
        offload[0],
    );
    if offload[0] != offload[1] {
        // Writing to a String cannot fail.
        let _ = write!(line, " (left), {} (right)", offload[1]);
    }
    let _ = write!(line, "; confined: {}", confinement::in_force());
    print(&line)?;
    notify("READY=1")?;
    let outcome = serve(&running, &signals, &guests, [&left.name(), &right.name()]);
    notify("STOPPING=1")?;
    let (counters, ended) = running.stop();
    print(&describe(&counters, &left.name(), &right.name()))?;
    outcome?;
    ended?;
    Ok(Exit::Done)
}

/// Handles events until a signal ends the bridge or a forwarding thread stops.
fn serve(
    running: &Running,
    signals: &Signals,
    guests: &[GuestWatcher],
    [left, right]: [&str; 2],
) -> anyhow::Result<()> {
    let events: Vec<_> = guests.iter().map(GuestWatcher::event).collect();
    loop {
        let (end, show) = (signals.end.as_fd(), signals.show.as_fd());
        let [ended, end, show] = wait_beside([running.ended(), end, show], &events)?;
        for line in guests.iter().flat_map(GuestWatcher::news) {
            print(&line)?;
        }
        if ended || end {
            return Ok(());
        }
        if show {
            take(&signals.show);
            let counters = Side::BOTH.map(|side| running.counters(side));
            print(&describe(&counters, left, right))?;
            for guest in guests {
                print(&guest.status().to_string())?;
            }
        }
    }
}

fn netmap(left: &BridgeEnd, right: &BridgeEnd) -> anyhow::Result<Netmap> {
    let address = |argument, asked: &BridgeEnd| {
        let Some(TapDevice { addresses, .. }) = asked.tap() else {
            return Err(usage(argument, "--netmap needs a TAP device, for which it answers ARP"));
        };
        let mut ipv4 = addresses.iter().filter_map(|(ip, prefix)| match ip {
            IpAddr::V4(ip) => Some(Address { ip: *ip, prefix: *prefix }),
            // netmap translates IPv4 only.
            IpAddr::V6(_) => None,
        });
        match (ipv4.next(), ipv4.next()) {
            (Some(address), None) => Ok(address),
            _ => Err(usage(argument, "--netmap needs exactly one IPv4 ADDRESS/LENGTH")),
        }
    };
    let (left, right) = (address("--left", left)?, address("--right", right)?);
    Netmap::new(left, right).map_err(|error| usage("--netmap", error))
}

fn offload(without: Option<NoOffload>, side: Side) -> Offload {
    match (without, side) {
        (Some(NoOffload::Both), _)
        | (Some(NoOffload::Left), Side::Left)
        | (Some(NoOffload::Right), Side::Right) => Offload::NONE,
        _ => Offload::ALL,
    }
}

/// Formats the counters, one line per direction.
fn describe(counters: &[Counters; 2], left: &str, right: &str) -> String {
    let line = |from: &str, to: &str, c: &Counters| {
        let mut line = format!(
            "{from} to {to}: received {} frames, {} bytes; forwarded {} frames, {} bytes",
            c.received, c.received_bytes, c.forwarded, c.forwarded_bytes
        );
        // Writing to a String cannot fail.
        if c.in_kernel > 0 {
            let _ = write!(line, " ({} in the kernel)", c.in_kernel);
        }
        if c.cut > 0 {
            let _ = write!(line, "; segmented {} into {}", c.cut, c.pieces);
        }
        if c.answered > 0 {
            let _ = write!(line, "; answered {} ARP requests", c.answered);
        }
        let _ = write!(line, "; dropped {}", c.dropped_in_words());
        line
    };
    format!("{}\n{}", line(left, right, &counters[0]), line(right, left, &counters[1]))
}

#[cfg(test)]
mod tests {
    use datapath::counters::DropReason;

    use super::*;

    #[test]
    fn counters_name_what_happened_only() {
        let mut counters = [Counters::default(); 2];
        counters[0].received = 3;
        counters[0].drops[DropReason::Down as usize] = 2;
        let text = describe(&counters, "a", "b");
        assert!(text.contains("a to b: received 3"), "{text}");
        assert!(text.contains("dropped 2 (down 2)"), "{text}");
        assert!(
            text.ends_with(
                "b to a: received 0 frames, 0 bytes; forwarded 0 frames, 0 bytes; dropped 0"
            ),
            "{text}"
        );
    }
}
