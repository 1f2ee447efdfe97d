//! Forwarding threads. If one of them ends by itself, all end.

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

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    /// Becomes readable when the threads have to end.
    stopping: EventFd,
    /// Becomes readable when a thread has ended by itself.
    ended: EventFd,
}

impl Shared {
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // Writing can only fail after 2^64 - 1 writes.
        let _ = self.stopping.write(1);
    }
}

/// The threads of a bridge or an endpoint. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<Result<()>>>,
    ids: Vec<Thread>,
}

impl Threads {
    /// Creates the event descriptors; starts no thread.
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

    /// Returns a descriptor that becomes readable when the threads have to end.
    pub(crate) fn stopping(&self) -> BorrowedFd<'_> {
        self.shared.stopping.as_fd()
    }

    /// Returns what a thread waits on, with these sources of packets and their names. It busy-polls
    /// for up to `busy_poll` before sleeping, while polling keeps finding packets.
    pub(crate) fn sources(
        &self,
        sources: &[(BorrowedFd<'_>, &str)],
        busy_poll: Duration,
    ) -> sys::Result<Sources> {
        let places: Vec<_> = sources.iter().copied().map(Some).collect();
        self.places(&places, busy_poll)
    }

    /// Like [`Threads::sources`], but the descriptors of some sources are added later, with
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
            // An empty slot keeps the numbers of the other sources.
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

    /// Starts a thread named `name`. When `work` returns, all other threads end, too.
    pub(crate) fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> sys::Result<()> {
        let end = EndGuard(self.shared.clone());
        let (sender, receiver) = mpsc::channel();
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _end = end;
            // The caller waits for this.
            let _ = sender.send(Thread::current());
            work()
        });
        self.handles.push(spawned.map_err(|error| sys::Error::io("start thread", name, &error))?);
        // The thread sends its id before anything else.
        self.ids.extend(receiver.recv());
        Ok(())
    }

    /// Pins the threads to CPUs in order, starting over if there are more threads than CPUs.
    pub(crate) fn pin(&self, cpus: &[usize]) -> sys::Result<()> {
        for (thread, cpu) in self.ids.iter().zip(cpus.iter().cycle()) {
            thread.pin_to(&[*cpu])?;
        }
        Ok(())
    }

    /// Returns a descriptor that becomes readable when a thread has ended by itself.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.shared.ended.as_fd()
    }

    /// Ends the threads; returns the error if they had ended by themselves.
    pub(crate) fn join(&mut self) -> Result<()> {
        self.shared.stop();
        let mut outcome = Ok(());
        for handle in self.handles.drain(..) {
            let ended = handle.join().unwrap_or(Err(Error::Panicked));
            // The first error is the cause; the others follow from it.
            outcome = outcome.and(ended);
        }
        outcome
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Callers that want the result use `join`.
        let _ = self.join();
    }
}

/// Ends all threads when the thread that owns it ends, for whatever reason.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.stop();
        // The event only shortens the wait; the flag is set already.
        let _ = self.0.ended.write(1);
    }
}

#[derive(Debug)]
pub(crate) struct Sources {
    epoll: Arc<Epoll>,
    events: Vec<EpollEvent>,
    adaptive_poll: AdaptivePoll,
    shared: Arc<Shared>,
}

impl Sources {
    /// Waits until a source is ready, and marks the ready ones in order, because reading an empty
    /// one wastes a system call. Returns false when the thread has to end.
    pub(crate) fn wait(&mut self, ready: &mut [bool]) -> sys::Result<bool> {
        while self.adaptive_poll.expects(Instant::now) {
            if self.look(ready, EpollTimeout::ZERO)? {
                self.adaptive_poll.came();
                return Ok(self.go_on());
            }
            // Let the sender run if it shares this CPU.
            std::thread::yield_now();
        }
        self.wait_for(ready, EpollTimeout::NONE)
    }

    /// Returns the epoll instance. A descriptor added to it is marked by its number.
    pub(crate) fn epoll(&self) -> &Arc<Epoll> {
        &self.epoll
    }

    /// Like [`Sources::wait`], with a time limit.
    pub(crate) fn wait_for(
        &mut self,
        ready: &mut [bool],
        limit: impl Into<EpollTimeout>,
    ) -> sys::Result<bool> {
        self.look(ready, limit.into())?;
        Ok(self.go_on())
    }

    /// Marks the sources that become ready within that time; returns true if there are any, or the
    /// thread has to end.
    fn look(&mut self, ready: &mut [bool], limit: EpollTimeout) -> sys::Result<bool> {
        let count = loop {
            match self.epoll.wait(&mut self.events, limit) {
                Ok(count) => break count,
                // A signal interrupted the wait.
                Err(Errno::EINTR) => {}
                Err(error) => {
                    return Err(sys::Error::new("epoll_wait", "sources of packets", error));
                }
            }
        };
        for event in &self.events[..count] {
            // The last one is the stop event, which has no place in `ready`.
            if let Some(ready) = ready.get_mut(event.data() as usize) {
                *ready = true;
            }
        }
        Ok(count > 0)
    }

    /// Returns whether the thread should continue.
    pub(crate) fn go_on(&self) -> bool {
        !self.shared.stop.load(Ordering::Relaxed)
    }
}
