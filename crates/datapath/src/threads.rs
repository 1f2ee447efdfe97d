//! Threads that forward until they are told to end. When one ends by itself, all
//! do.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use sys::affinity::Thread;

use crate::adaptive_poll::AdaptivePoll;
use crate::{Error, Result};

/// What the threads share.
#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// Becomes readable when the threads are to end.
    stopping: EventFd,
    /// Becomes readable when a thread has ended by itself.
    ended: EventFd,
}

impl Shared {
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // An eventfd that cannot be written to would need 2^64 - 1 writes.
        let _ = self.stopping.write(1);
    }
}

/// The threads of a bridge or an endpoint; dropping it ends them.
#[derive(Debug)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<Result<()>>>,
    ids: Vec<Thread>,
}

impl Threads {
    /// Makes the descriptors by which threads are ended and tell of their end; starts none.
    pub(crate) fn new() -> sys::Result<Threads> {
        let eventfd = |object| {
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                .map_err(|e| sys::Error::new("eventfd", object, e))
        };
        let shared = Shared {
            stop: AtomicBool::new(false),
            stopping: eventfd("end of forwarding")?,
            ended: eventfd("end of a thread")?,
        };
        Ok(Threads { shared: Arc::new(shared), handles: Vec::new(), ids: Vec::new() })
    }

    /// Becomes readable when the threads are to end.
    pub(crate) fn stopping(&self) -> BorrowedFd<'_> {
        self.shared.stopping.as_fd()
    }

    /// What a thread with these sources of packets, and their names, waits by; for
    /// `busy_poll` it looks again before it sleeps, as long as that has been of use.
    pub(crate) fn sources(
        &self,
        sources: &[(BorrowedFd<'_>, &str)],
        busy_poll: Duration,
    ) -> sys::Result<Sources> {
        let places: Vec<_> = sources.iter().copied().map(Some).collect();
        self.places(&places, busy_poll)
    }

    /// [`Threads::sources`], of which some have descriptors that come later, by
    /// [`Sources::epoll`].
    pub(crate) fn places(
        &self,
        sources: &[Option<(BorrowedFd<'_>, &str)>],
        busy_poll: Duration,
    ) -> sys::Result<Sources> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| sys::Error::new("epoll_create1", "sources of packets", e))?;
        let end = Some((self.shared.stopping.as_fd(), "end of forwarding"));
        for (at, source) in sources.iter().chain([&end]).enumerate() {
            let Some((fd, name)) = source else { continue };
            epoll
                .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, at as u64))
                .map_err(|e| sys::Error::new("epoll_ctl(EPOLL_CTL_ADD)", *name, e))?;
        }
        let events = vec![EpollEvent::empty(); sources.len() + 1];
        let adaptive_poll = AdaptivePoll::new(busy_poll);
        let epoll = Arc::new(epoll);
        Ok(Sources { epoll, events, adaptive_poll, shared: self.shared.clone() })
    }

    /// Starts a thread named `name`; when `work` returns, all others are ended too.
    pub(crate) fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> sys::Result<()> {
        let end = End(self.shared.clone());
        let (tell, told) = mpsc::channel();
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _end = end;
            // Who asked is waiting for it.
            let _ = tell.send(Thread::current());
            work()
        });
        self.handles.push(spawned.map_err(|error| sys::Error::io("start thread", name, &error))?);
        // A thread says so before anything else.
        self.ids.extend(told.recv());
        Ok(())
    }

    /// Binds them to CPUs, one after the other, from the first again where there are
    /// more threads.
    pub(crate) fn pin(&self, cpus: &[usize]) -> sys::Result<()> {
        for (thread, cpu) in self.ids.iter().zip(cpus.iter().cycle()) {
            thread.pin_to(&[*cpu])?;
        }
        Ok(())
    }

    /// Becomes readable when a thread has ended by itself.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.shared.ended.as_fd()
    }

    /// Ends them; tells why they ended by themselves, if they did.
    pub(crate) fn join(&mut self) -> Result<()> {
        self.shared.stop();
        let mut outcome = Ok(());
        for handle in self.handles.drain(..) {
            let ended = handle.join().unwrap_or(Err(Error::Panicked));
            // The first is the cause; others follow from it.
            outcome = outcome.and(ended);
        }
        outcome
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Whoever wants to know calls `join`.
        let _ = self.join();
    }
}

/// One thread that ended, in whatever way, is the end of all.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.stop();
        let _ = self.0.ended.write(1);
    }
}

/// Sources of packets that one thread reads.
#[derive(Debug)]
pub(crate) struct Sources {
    epoll: Arc<Epoll>,
    events: Vec<EpollEvent>,
    adaptive_poll: AdaptivePoll,
    shared: Arc<Shared>,
}

impl Sources {
    /// Waits until one has something, and marks those that have, in their order:
    /// reading what is empty is a system call for nothing. False when it is time to
    /// end.
    pub(crate) fn wait(&mut self, ready: &mut [bool]) -> sys::Result<bool> {
        while self.adaptive_poll.expects(Instant::now) {
            if self.look(ready, EpollTimeout::ZERO)? {
                self.adaptive_poll.came();
                return Ok(self.go_on());
            }
            // Whoever is to have something for us may be on this CPU.
            std::thread::yield_now();
        }
        self.wait_for(ready, EpollTimeout::NONE)
    }

    /// What it waits by. What is added to it is marked by its number.
    pub(crate) fn epoll(&self) -> &Arc<Epoll> {
        &self.epoll
    }

    /// [`Sources::wait`], but no longer than that.
    pub(crate) fn wait_for(
        &mut self,
        ready: &mut [bool],
        limit: impl Into<EpollTimeout>,
    ) -> sys::Result<bool> {
        self.look(ready, limit.into())?;
        Ok(self.go_on())
    }

    /// Marks those that have something within that time; true if there are any, or it
    /// is time to end.
    fn look(&mut self, ready: &mut [bool], limit: EpollTimeout) -> sys::Result<bool> {
        let count = loop {
            match self.epoll.wait(&mut self.events, limit) {
                Ok(count) => break count,
                Err(Errno::EINTR) => {}
                Err(error) => {
                    return Err(sys::Error::new("epoll_wait", "sources of packets", error));
                }
            }
        };
        for event in &self.events[..count] {
            // The last is the end.
            if let Some(ready) = ready.get_mut(event.data() as usize) {
                *ready = true;
            }
        }
        Ok(count > 0)
    }

    /// Whether it is not yet time to end.
    pub(crate) fn go_on(&self) -> bool {
        !self.shared.stop.load(Ordering::Relaxed)
    }
}
