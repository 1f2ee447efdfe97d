//! The device, shared by its threads: one that serves the client's requests, and one for each queue
//! pair, which moves frames.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use serde::{Deserialize, Serialize};
use sys::descriptors::PeerEvent;
use sys::tap::Offload;

use super::features;
use super::memory::Memory;
use super::ring::{Ring, RingDirection, RingError, RingLocation};
use super::untouched::MemoryLimit;

/// Maximum number of log lines that wait to be read; the oldest are discarded.
const NEWS_MAX: usize = 64;

/// Status of a guest's port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub struct GuestStatus {
    /// Path of the socket.
    pub socket: String,
    /// State of the port.
    pub state: GuestState,
    /// Error of the first ring that was disabled for breaking the specification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Number of queue pairs in use.
    pub queues: usize,
    /// Number of queue pairs available.
    pub queues_max: usize,
    /// Features accepted by the guest, as the virtio specification names them.
    pub features: Vec<String>,
    /// Size of the guest's memory, bytes.
    pub memory: u64,
}

impl fmt::Display for GuestStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GuestStatus { socket, state, broken, queues, queues_max, features, memory } = self;
        write!(f, "guest {socket}: {}", state.name())?;
        if let Some(broken) = broken {
            write!(f, ", {broken}")?;
        }
        write!(f, "; {queues} of {queues_max} queues; {} MiB of memory", memory >> 20)?;
        let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
        write!(f, "; features: {features}")
    }
}

/// State of a guest's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GuestState {
    /// No client is connected.
    Waiting,
    /// A client is connected, but the guest's driver is not up.
    Connected,
    /// Frames can be moved in both directions.
    Running,
    /// A ring broke the specification. It is disabled until the guest restarts it.
    Broken,
}

impl GuestState {
    /// Returns the name used in status and events.
    pub const fn name(self) -> &'static str {
        match self {
            GuestState::Waiting => "waiting",
            GuestState::Connected => "connected",
            GuestState::Running => "running",
            GuestState::Broken => "broken",
        }
    }
}

/// A ring and its state.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) ring: Option<(Ring, Arc<Memory>)>,
    kick: Option<PeerEvent>,
    pub(super) call: Option<PeerEvent>,
    enabled: bool,
    broken: Option<RingError>,
    /// Buffers were used since the guest was last notified.
    pub(super) is_unnotified: bool,
}

/// Wakes the thread of a queue pair.
#[derive(Debug)]
struct Waker {
    /// The epoll instance of the thread, and the number of the source in it.
    watcher: Mutex<Option<(Arc<Epoll>, u64)>>,
    /// Signals that a ring has changed.
    changed: EventFd,
}

/// The device. A ring's number is twice that of its pair, plus one for the ring on which the guest
/// sends (virtio 1.2, section 5.1.2).
#[derive(Debug)]
pub(super) struct Device {
    name: String,
    offered: u64,
    pub(super) slots: Vec<Mutex<Slot>>,
    wakers: Vec<Waker>,
    /// Features accepted by the guest; 0 while no client is connected.
    features: AtomicU64,
    memory: Mutex<Option<Arc<Memory>>>,
    /// Limit of this process's memory.
    limit: Option<Arc<MemoryLimit>>,
    connected: std::sync::atomic::AtomicBool,
    news: Mutex<VecDeque<String>>,
    event: EventFd,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    pub(super) fn new(
        name: &str,
        queues: usize,
        offload: Offload,
        limit: Option<Arc<MemoryLimit>>,
    ) -> sys::Result<Device> {
        let event = || {
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
                .map_err(|e| sys::Error::new("eventfd", name, e))
        };
        let waker = || Ok(Waker { watcher: Mutex::default(), changed: event()? });
        Ok(Device {
            name: name.to_owned(),
            offered: features::offered(offload, queues),
            slots: (0..2 * queues).map(|_| Mutex::default()).collect(),
            wakers: (0..queues).map(|_| waker()).collect::<sys::Result<_>>()?,
            features: AtomicU64::new(0),
            memory: Mutex::default(),
            limit,
            connected: false.into(),
            news: Mutex::default(),
            event: event()?,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn queues(&self) -> usize {
        self.wakers.len()
    }

    pub(super) fn offered(&self) -> u64 {
        self.offered
    }

    /// Returns the offloads that the guest currently accepts.
    pub(super) fn takes(&self) -> Offload {
        features::taken(self.features())
    }

    pub(super) fn features(&self) -> u64 {
        self.features.load(Ordering::Acquire)
    }

    pub(super) fn set_features(&self, features: u64) {
        self.features.store(features, Ordering::Release);
    }

    pub(super) fn set_memory(&self, memory: Option<Arc<Memory>>) {
        *lock(&self.memory) = memory;
    }

    /// Records that a client has connected.
    pub(super) fn connect(&self) {
        self.connected.store(true, Ordering::Release);
        self.tell("a client has connected");
    }

    /// Records that the client has disconnected, and discards everything that it set up.
    pub(super) fn disconnect(&self) {
        for ring in 0..self.slots.len() {
            self.stop(ring);
            *lock(&self.slots[ring]) = Slot::default();
        }
        self.set_memory(None);
        self.set_features(0);
        self.connected.store(false, Ordering::Release);
    }

    /// Adds a line to the log that the program prints.
    pub(super) fn tell(&self, line: &str) {
        let mut news = lock(&self.news);
        if news.len() == NEWS_MAX {
            news.pop_front();
        }
        news.push_back(format!("{}: {line}", self.name));
        // Writing can only fail after 2^64 - 1 writes.
        let _ = self.event.write(1);
    }

    /// Returns a descriptor that becomes readable when there are log lines.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Takes the log lines.
    pub(super) fn news(&self) -> Vec<String> {
        let _ = self.event.read();
        lock(&self.news).drain(..).collect()
    }

    pub(super) fn status(&self) -> GuestStatus {
        let features = self.features();
        let usable = |ring: usize| lock(&self.slots[ring]).is_usable(features);
        let queues = (0..self.queues()).filter(|queue| usable(2 * queue) && usable(2 * queue + 1));
        let queues = queues.count();
        let mut broken = self.slots.iter().enumerate().filter_map(|(ring, slot)| {
            lock(slot).broken.map(|error| format!("ring {ring}: {error}"))
        });
        let broken = broken.next();
        let state = match (self.connected.load(Ordering::Acquire), &broken, queues) {
            (false, ..) => GuestState::Waiting,
            (true, Some(_), _) => GuestState::Broken,
            (true, None, 0) => GuestState::Connected,
            (true, None, _) => GuestState::Running,
        };
        let names = features::names(features).into_iter().map(str::to_owned);
        GuestStatus {
            socket: self.name.clone(),
            state,
            broken,
            queues,
            queues_max: self.queues(),
            features: names.collect(),
            memory: lock(&self.memory).as_ref().map_or(0, |memory| memory.size()),
        }
    }

    /// Wakes the thread of a pair by the guest's notifications for its rings.
    pub(super) fn watch(&self, queue: usize, epoll: Arc<Epoll>, source: u64) -> sys::Result<()> {
        let waker = &self.wakers[queue];
        add(&epoll, waker.changed.as_fd(), source)
            .map_err(|e| sys::Error::new("epoll_ctl(EPOLL_CTL_ADD)", self.name.clone(), e))?;
        *lock(&waker.watcher) = Some((epoll, source));
        Ok(())
    }

    /// Starts a ring, whose notifications arrive by `kick`.
    pub(super) fn start(
        &self,
        number: usize,
        memory: Arc<Memory>,
        place: Option<RingLocation>,
        base: u16,
        kick: PeerEvent,
    ) {
        self.stop_kick(number);
        let features = self.features();
        let mut slot = lock(&self.slots[number]);
        let event_index = features & features::EVENT_INDEX != 0;
        let unknown = RingError::Outside { part: "descriptors and entries", at: 0 };
        let map = memory.mapped();
        let ring = place.ok_or(unknown);
        let limit = self.limit.clone();
        let ring =
            ring.and_then(|place| Ring::new(map, place, way(number), base, event_index, limit));
        let ring = ring.and_then(|mut ring| {
            // A sending guest may have offered buffers before, so ask for notifications.
            match way(number) {
                RingDirection::FromGuest => drop(ring.enable_notification(map)?),
                RingDirection::ToGuest => ring.suppress_notification(map)?,
            }
            Ok(ring)
        });
        slot.broken = None;
        match ring {
            Ok(ring) => slot.ring = Some((ring, memory)),
            // The ring is the guest's: a broken one is disabled, and the other rings continue.
            Err(error) => return self.break_ring(&mut slot, number, error),
        }
        if let Some((epoll, source)) = &*lock(&self.wakers[number / 2].watcher) {
            // Without notifications, the ring is still checked when another source wakes the
            // thread.
            if let Err(errno) = add(epoll, kick.as_fd(), *source) {
                self.tell(&format!("ring {number}: cannot watch for its notifications: {errno}"));
            }
        }
        slot.kick = Some(kick);
        drop(slot);
        self.changed(number);
    }

    /// Stops a ring; returns the entry at which it can continue, if it was in use.
    pub(super) fn stop(&self, number: usize) -> Option<u16> {
        self.stop_kick(number);
        let mut slot = lock(&self.slots[number]);
        slot.call = None;
        slot.is_unnotified = false;
        slot.ring.take().map(|(ring, _)| ring.base())
    }

    /// Stops watching the guest's notifications. The epoll entry must be deleted explicitly,
    /// because the client may hold another reference to the event.
    fn stop_kick(&self, number: usize) {
        let kick = lock(&self.slots[number]).kick.take();
        if let (Some(kick), Some((epoll, _))) = (kick, &*lock(&self.wakers[number / 2].watcher)) {
            // The descriptor may be closed by the client already, which removes it from the set.
            let _ = epoll.delete(&kick);
        }
    }

    /// Sets how the guest is notified.
    pub(super) fn set_call(&self, number: usize, call: Option<PeerEvent>) {
        let mut slot = lock(&self.slots[number]);
        // Buffers used before may not have been announced.
        slot.is_unnotified = true;
        slot.call = call;
        drop(slot);
        self.changed(number);
    }

    pub(super) fn enable(&self, number: usize, enabled: bool) {
        lock(&self.slots[number]).enabled = enabled;
        self.changed(number);
    }

    /// Moves a ring in use to new memory or to another place.
    pub(super) fn replace(&self, number: usize, memory: &Arc<Memory>, place: Option<RingLocation>) {
        let mut slot = lock(&self.slots[number]);
        // The ring is not started.
        let Some((ring, used)) = &mut slot.ring else { return };
        let unknown = RingError::Outside { part: "descriptors and entries", at: 0 };
        let placed = place.ok_or(unknown);
        match placed.and_then(|place| ring.replace(memory.mapped(), place)) {
            Ok(()) => *used = memory.clone(),
            Err(error) => self.break_ring(&mut slot, number, error),
        }
    }

    fn changed(&self, number: usize) {
        // The thread reads the change with its next event in any case.
        let _ = self.wakers[number / 2].changed.write(1);
    }

    /// Disables a ring because the guest broke the specification.
    pub(super) fn break_ring(&self, slot: &mut Slot, number: usize, error: RingError) {
        slot.ring = None;
        slot.broken = Some(error);
        self.tell(&format!("ring {number} is disabled until the guest restarts it: {error}"));
    }
}

fn add(epoll: &Epoll, fd: BorrowedFd<'_>, source: u64) -> nix::Result<()> {
    // Edge-triggered: each write causes an event, and the counter need not be read.
    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, source))
}

pub(super) fn way(number: usize) -> RingDirection {
    if number % 2 == 1 { RingDirection::FromGuest } else { RingDirection::ToGuest }
}

impl Slot {
    pub(super) fn is_usable(&self, features: u64) -> bool {
        let enabled = self.enabled || features & features::PROTOCOL_FEATURES == 0;
        self.ring.is_some() && enabled
    }
}
