//! A thread per queue pair that sleeps in `epoll_wait`.
//!
//! A queue that has something is read until it is empty, so that under load a
//! frame costs one read and one write and the sleep is paid once per burst; but
//! no longer than [`BUDGET`] frames while the opposite one waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::super::forward::{Forwarder, Pumped};
use super::super::{Bridge, Error, Result, Side};
use super::Shared;

/// Frames of one direction before the other gets its turn. So many super-packets
/// are about a socket's receive buffer: more in a row would only fill queues.
const BUDGET: usize = 64;

/// What an event's number stands for: a side's, or this.
const STOP: u64 = 2;

pub(super) fn start(bridge: Bridge, shared: &Arc<Shared>) -> Result<Vec<JoinHandle<Result<()>>>> {
    let (left_offload, right_offload) = (bridge.left.offload(), bridge.right.offload());
    let netmap = bridge.netmap;
    let pairs = bridge.left.into_queues().into_iter().zip(bridge.right.into_queues());
    let mut threads: Vec<JoinHandle<Result<()>>> = Vec::new();
    for (index, (left, right)) in pairs.enumerate() {
        let (left, right) = (Arc::new(left), Arc::new(right));
        let [from_left, from_right] = shared.counters[index].clone();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| sys::Error::new("epoll_create1", left.name(), e))?;
        let add = |fd: std::os::fd::BorrowedFd<'_>, data, name: &str| {
            epoll
                .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, data))
                .map_err(|e| sys::Error::new("epoll_ctl(EPOLL_CTL_ADD)", name, e))
        };
        add(std::os::fd::AsFd::as_fd(&*left), Side::Left as u64, left.name())?;
        add(std::os::fd::AsFd::as_fd(&*right), Side::Right as u64, right.name())?;
        add(std::os::fd::AsFd::as_fd(&shared.stopping), STOP, "end of the bridge")?;
        let forwarders = [
            Forwarder::new(
                left.clone(),
                left_offload,
                right.clone(),
                right_offload,
                Side::Left,
                netmap,
                from_left,
            ),
            Forwarder::new(
                right,
                right_offload,
                left,
                left_offload,
                Side::Right,
                netmap,
                from_right,
            ),
        ];
        let spawned = std::thread::Builder::new().name(format!("tapbridge {index}")).spawn({
            let shared = shared.clone();
            move || {
                let outcome = run(&epoll, forwarders, &shared);
                // One queue that ended is the end of all.
                shared.stop.store(true, Ordering::Relaxed);
                let _ = shared.stopping.write(1);
                let _ = shared.ended.write(1);
                outcome
            }
        });
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                shared.stop.store(true, Ordering::Relaxed);
                let _ = shared.stopping.write(1);
                for thread in threads {
                    let _ = thread.join();
                }
                return Err(sys::Error::io("start thread", "tapbridge", &error).into());
            }
        }
    }
    Ok(threads)
}

fn run(epoll: &Epoll, mut forwarders: [Forwarder; 2], shared: &Shared) -> Result<()> {
    let mut events = [EpollEvent::empty(); 3];
    loop {
        let count = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(count) => count,
            Err(Errno::EINTR) => continue,
            Err(error) => {
                return Err(Error::Sys(sys::Error::new("epoll_wait", "tapbridge", error)));
            }
        };
        // Only queues that have something are read: reading an empty one is a
        // system call for nothing.
        let ready = |side: Side| events[..count].iter().any(|e| e.data() == side as u64);
        let mut more = Side::BOTH.map(ready);
        while more != [false; 2] {
            if shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            for (forwarder, more) in forwarders.iter_mut().zip(&mut more) {
                if *more {
                    *more = forwarder.pump(BUDGET)? == Pumped::More;
                }
            }
        }
        if shared.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}
