//! The device as its threads share it: one that serves the client's requests, and one for
//! each pair of queues, which moves frames.

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
use super::ring::{Place, Ring, RingError, Way};

/// Lines that wait to be told, at most; the oldest go.
const NEWS_MAX: usize = 64;

/// What a guest's port is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub struct GuestStatus {
    /// Path of the socket.
    pub socket: String,
    /// What the port is doing.
    pub state: GuestState,
    /// Why a ring is not used any more, of the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Pairs of queues in use.
    pub queues: usize,
    /// Pairs of queues that there are.
    pub queues_max: usize,
    /// Features that the guest has taken, as the virtio specification names them.
    pub features: Vec<String>,
    /// Bytes of the guest's memory.
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

/// What a guest's port is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum GuestState {
    /// No client is connected.
    Waiting,
    /// A client is connected, and the guest's driver is not up.
    Connected,
    /// Frames can go both ways.
    Running,
    /// The guest has broken a rule of rings, and gets nothing until it starts anew.
    Broken,
}

impl GuestState {
    /// As status and events have it.
    pub const fn name(self) -> &'static str {
        match self {
            GuestState::Waiting => "waiting",
            GuestState::Connected => "connected",
            GuestState::Running => "running",
            GuestState::Broken => "broken",
        }
    }
}

/// A ring, and what goes with it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) ring: Option<(Ring, Arc<Memory>)>,
    kick: Option<PeerEvent>,
    pub(super) call: Option<PeerEvent>,
    enabled: bool,
    broken: Option<RingError>,
    /// Something was used since the guest was asked whether it wants to know.
    pub(super) untold: bool,
}

/// How the thread of a pair of queues is woken.
#[derive(Debug)]
struct Waker {
    /// What the thread waits by, and as which source.
    watcher: Mutex<Option<(Arc<Epoll>, u64)>>,
    /// Something has changed.
    changed: EventFd,
}

/// The device. A ring's number is twice that of its pair, and one more if the guest sends
/// by it (virtio 1.2, section 5.1.2).
#[derive(Debug)]
pub(super) struct Device {
    name: String,
    offered: u64,
    pub(super) slots: Vec<Mutex<Slot>>,
    wakers: Vec<Waker>,
    /// What the guest has taken; 0 while no client is connected.
    features: AtomicU64,
    memory: Mutex<Option<Arc<Memory>>>,
    connected: std::sync::atomic::AtomicBool,
    news: Mutex<VecDeque<String>>,
    told: EventFd,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    pub(super) fn new(name: &str, queues: usize, offload: Offload) -> sys::Result<Device> {
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
            connected: false.into(),
            news: Mutex::default(),
            told: event()?,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn queues(&self) -> usize {
        self.wakers.len()
    }

    /// Features that can be taken.
    pub(super) fn offered(&self) -> u64 {
        self.offered
    }

    /// What the guest takes uncut now.
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

    /// A client has come.
    pub(super) fn connect(&self) {
        self.connected.store(true, Ordering::Release);
        self.tell("a client has connected");
    }

    /// The client is gone: so is all that it has set up.
    pub(super) fn disconnect(&self) {
        for ring in 0..self.slots.len() {
            self.stop(ring);
            *lock(&self.slots[ring]) = Slot::default();
        }
        self.set_memory(None);
        self.set_features(0);
        self.connected.store(false, Ordering::Release);
    }

    /// Adds a line that the program is to print.
    pub(super) fn tell(&self, line: &str) {
        let mut news = lock(&self.news);
        if news.len() == NEWS_MAX {
            news.pop_front();
        }
        news.push_back(format!("{}: {line}", self.name));
        // An eventfd that cannot be written to would need 2^64 - 1 writes.
        let _ = self.told.write(1);
    }

    /// Becomes readable when there are lines.
    pub(super) fn told(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }

    /// Takes the lines.
    pub(super) fn news(&self) -> Vec<String> {
        let _ = self.told.read();
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

    /// Has the thread of a pair woken by what the guest says of its rings.
    pub(super) fn watch(&self, queue: usize, epoll: Arc<Epoll>, source: u64) -> sys::Result<()> {
        let waker = &self.wakers[queue];
        add(&epoll, waker.changed.as_fd(), source)
            .map_err(|e| sys::Error::new("epoll_ctl(EPOLL_CTL_ADD)", self.name.clone(), e))?;
        *lock(&waker.watcher) = Some((epoll, source));
        Ok(())
    }

    /// Starts a ring, which is told of by `kick`.
    pub(super) fn start(
        &self,
        number: usize,
        memory: Arc<Memory>,
        place: Option<Place>,
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
        let ring = ring.and_then(|place| Ring::new(map, place, way(number), base, event_index));
        let ring = ring.and_then(|mut ring| {
            // A sender may have offered something while nobody looked.
            match way(number) {
                Way::FromGuest => drop(ring.wants_to_be_told(map)?),
                Way::ToGuest => ring.need_not_be_told(map)?,
            }
            Ok(ring)
        });
        slot.broken = None;
        match ring {
            Ok(ring) => slot.ring = Some((ring, memory)),
            Err(error) => return self.break_ring(&mut slot, number, error),
        }
        if let Some((epoll, source)) = &*lock(&self.wakers[number / 2].watcher) {
            // What cannot be watched is looked at when something else comes.
            if let Err(errno) = add(epoll, kick.as_fd(), *source) {
                self.tell(&format!("ring {number}: its events cannot be watched: {errno}"));
            }
        }
        slot.kick = Some(kick);
        drop(slot);
        self.changed(number);
    }

    /// Stops a ring; the entry at which it can go on, if it was in use.
    pub(super) fn stop(&self, number: usize) -> Option<u16> {
        self.stop_kick(number);
        let mut slot = lock(&self.slots[number]);
        slot.call = None;
        slot.untold = false;
        slot.ring.take().map(|(ring, _)| ring.base())
    }

    /// The guest is no longer listened to: nobody else may hold the event's last reference.
    fn stop_kick(&self, number: usize) {
        let kick = lock(&self.slots[number]).kick.take();
        if let (Some(kick), Some((epoll, _))) = (kick, &*lock(&self.wakers[number / 2].watcher)) {
            let _ = epoll.delete(&kick);
        }
    }

    /// How the guest is told.
    pub(super) fn set_call(&self, number: usize, call: Option<PeerEvent>) {
        let mut slot = lock(&self.slots[number]);
        // What was used before may not have been told.
        slot.untold = true;
        slot.call = call;
        drop(slot);
        self.changed(number);
    }

    pub(super) fn enable(&self, number: usize, enabled: bool) {
        lock(&self.slots[number]).enabled = enabled;
        self.changed(number);
    }

    /// Memory was mapped anew, or a ring is elsewhere: it goes on there.
    pub(super) fn replace(&self, number: usize, memory: &Arc<Memory>, place: Option<Place>) {
        let mut slot = lock(&self.slots[number]);
        let Some((ring, used)) = &mut slot.ring else { return };
        let unknown = RingError::Outside { part: "descriptors and entries", at: 0 };
        let placed = place.ok_or(unknown);
        match placed.and_then(|place| ring.replace(memory.mapped(), place)) {
            Ok(()) => *used = memory.clone(),
            Err(error) => self.break_ring(&mut slot, number, error),
        }
    }

    fn changed(&self, number: usize) {
        let _ = self.wakers[number / 2].changed.write(1);
    }

    /// The guest has broken a rule: its ring is not looked at any more.
    pub(super) fn break_ring(&self, slot: &mut Slot, number: usize, error: RingError) {
        slot.ring = None;
        slot.broken = Some(error);
        self.tell(&format!("ring {number} is broken until the guest starts it anew: {error}"));
    }
}

fn add(epoll: &Epoll, fd: BorrowedFd<'_>, source: u64) -> nix::Result<()> {
    // By edges: each write is one, and nothing need be read.
    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, source))
}

/// Which way the ring of a number goes.
pub(super) fn way(number: usize) -> Way {
    if number % 2 == 1 { Way::FromGuest } else { Way::ToGuest }
}

impl Slot {
    pub(super) fn is_usable(&self, features: u64) -> bool {
        let enabled = self.enabled || features & features::PROTOCOL_FEATURES == 0;
        self.ring.is_some() && enabled
    }
}
