//! The programs of `bpf/trace.bpf.c`, loaded, attached and read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::rc::Rc;
use std::time::Duration;

use bpf_load::DropReasons;
use libbpf_rs::btf::types::{FuncProto, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, RingBuffer, RingBufferBuilder};
use nix::errno::Errno;

use crate::call_cost::call_cost;
use crate::event::{EVENT_BYTES, Event};
use crate::expression::put_into;
use crate::filter::{Emitted, FILTER_BYTES, Filter, FlowPattern};
use crate::not_told::{Allowance, KEY_BYTES, NotTold};
use crate::places::Places;
use crate::translated::add_translated;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.bpf.o"));

/// The programs at the trace point of drops, by the arguments that it has, the data pointer of
/// trace points among them.
const DROPS: [(u32, &str); 3] =
    [(5, "kfree_skb_of_socket"), (4, "kfree_skb_reason"), (3, "kfree_skb")];

/// Trace points without which something is not seen, and what that is.
const OTHERS: [(&str, &str); 9] = [
    ("net_dev_queue", "packets before they are queued or cut"),
    ("net_dev_start_xmit", "packets that devices send"),
    ("netif_rx", "packets that wait in a CPU's backlog"),
    ("napi_gro_receive_entry", "packets before they are merged"),
    ("netif_receive_skb", "packets that devices receive"),
    ("skb_copy_datagram_iovec", "packets that sockets are read of"),
    ("tcp_probe", "segments that connections receive"),
    ("sk_data_ready", "datagrams that sockets receive"),
    ("consume_skb", "the end of packets that were used"),
];

/// `struct cost` of the C source.
const COST_BYTES: usize = 24;
/// Events that [`Tracer::poll`] takes at once.
pub const MOST_AT_ONCE: usize = 8192;

/// The program that [`call_cost`] attaches, and its trace point.
const EMPTY: (&str, &str) = ("empty", "skb_copy_datagram_iovec");

/// What the call of a program is taken for where it cannot be measured. It was 22 to 39 ns where it
/// could (2 vCPUs of an Intel Xeon under KVM, Linux 6.18).
const CALL: Duration = Duration::from_nanos(40);
/// More is no call: the machine did something else.
const LONGEST_CALL: Duration = Duration::from_micros(1);

/// Why packets cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The kernel has not what it takes, or does not let this process.
    #[error("{0}")]
    Kernel(String),
    /// Namespaces cannot be listed.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A map or the ring of events failed.
    #[error("{operation}: {error}")]
    Bpf {
        /// What was to be done.
        operation: &'static str,
        /// What libbpf said.
        error: libbpf_rs::Error,
    },
}

fn failed(operation: &'static str) -> impl Fn(libbpf_rs::Error) -> TraceError {
    move |error| TraceError::Bpf { operation, error }
}

/// What looking in windows has cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Runs of the programs.
    pub runs: u64,
    /// CPU time of all of them, estimated.
    pub took: Duration,
}

/// Programs at work, until it is dropped.
pub struct Tracer {
    ring: RingBuffer<'static>,
    /// What the ring held, filled while it is polled.
    came: Rc<RefCell<Vec<Event>>>,
    /// So many events more are taken now.
    room: Rc<Cell<usize>>,
    filters: MapHandle,
    spaces: MapHandle,
    tunnels: MapHandle,
    origins: MapHandle,
    lost: MapHandle,
    /// Drops that may be told, where only those are.
    allowance: Option<Allowance>,
    /// Events that were read, since the beginning.
    read: Rc<Cell<u64>>,
    costs: MapHandle,
    /// What a run costs besides the program: the trace point's call of it.
    call: Duration,
    filter: Filter,
    /// What the filter's flows are translated to.
    translated: Vec<FlowPattern>,
    /// One packet in so many begins to be followed; 0: none.
    sample: u32,
    /// Where packets are followed in windows: how many there were.
    window: Option<u32>,
    /// Bits of devices and ports, as the filter has them.
    bits: Bits,
    reasons: DropReasons,
    functions: RefCell<BTreeMap<u64, Option<String>>>,
    /// What this kernel lacks, in words.
    pub not_seen: Vec<String>,
    object: Object,
    /// Names of the programs that are attached where packets are seen.
    wanted: Vec<&'static str>,
    // Dropping them detaches the programs.
    links: Vec<Link>,
}

/// What spares the programs a look-up, for most packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bits {
    origins: u64,
    tunnels: u64,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("filter", &self.filter).finish_non_exhaustive()
    }
}

/// How many arguments a trace point has, the data pointer of trace points among them.
fn arguments(btf: &Btf<'_>, trace_point: &str) -> Option<u32> {
    let typedef = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{trace_point}"))?;
    let function = FuncProto::try_from(typedef.referenced_type().next_type()?).ok()?;
    u32::try_from(function.len()).ok()
}

impl Tracer {
    /// Attaches the programs: every packet that `filter` wants is told of from now on. Tunnels
    /// are looked into, and packets chosen, where `places` has them.
    ///
    /// # Errors
    /// A kernel without BTF or these trace points, a process without CAP_BPF and CAP_PERFMON.
    pub fn start(filter: Filter, places: &Places) -> Result<Tracer, TraceError> {
        let mut tracer = Tracer::load(filter, places, &[])?;
        tracer.attach()?;
        Ok(tracer)
    }

    /// The same, to look in windows: nothing is attached before the first one.
    ///
    /// # Errors
    /// As [`Tracer::start`].
    pub(crate) fn in_windows(filter: Filter, places: &Places) -> Result<Tracer, TraceError> {
        let mut tracer = Tracer::load(filter, places, &[EMPTY])?;
        tracer.window = Some(0);
        tracer.call = tracer.measure_call();
        tracing::debug!(call = ?tracer.call, "what the kernel's call of a program takes");
        Ok(tracer)
    }

    /// What the kernel's call of a program takes on this machine, now.
    fn measure_call(&mut self) -> Duration {
        let empty = self.object.progs_mut().find(|program| program.name() == OsStr::new(EMPTY.0));
        let measured = empty.map(|program| call_cost(|| program.attach()));
        match measured {
            Some(Ok(call)) if !call.is_zero() => call.min(LONGEST_CALL),
            // Noise hid it, or this kernel lacks the trace point: the cost must not seem to be none.
            _ => CALL,
        }
    }

    /// Loads the programs that see packets, and those in `besides`, with their trace points.
    fn load(
        filter: Filter,
        places: &Places,
        besides: &[(&str, &str)],
    ) -> Result<Tracer, TraceError> {
        let programs = put_into(OBJECT, filter.expression.as_ref()).map_err(TraceError::Kernel)?;
        let (mut object, btf) = bpf_load::open(&programs).map_err(TraceError::Kernel)?;
        let got = arguments(&btf, "kfree_skb").unwrap_or(0);
        let drops = DROPS.iter().find(|(least, _)| got >= *least).map(|(_, program)| *program);
        let drops = drops.ok_or_else(|| {
            let problem = "the kernel has no trace point skb:kfree_skb with 3 arguments or more";
            TraceError::Kernel(problem.to_owned())
        })?;
        let mut wanted: Vec<&'static str> = vec![drops];
        let mut not_seen = Vec::new();
        let is_needed = |program: &str| match program {
            // It tells of UDP's datagrams only, and each packet of others passes it.
            "sk_data_ready" => !filter.drops_only && filter.may_want_udp(),
            _ => !filter.drops_only,
        };
        for (program, what) in OTHERS.iter().filter(|(program, _)| is_needed(program)) {
            match arguments(&btf, program) {
                Some(_) => wanted.push(*program),
                None => not_seen.push(format!("{what}: no trace point {program}")),
            }
        }
        for mut program in object.progs_mut() {
            let is_there = |(_, place): &&(&str, &str)| arguments(&btf, place).is_some();
            let besides = besides.iter().filter(is_there).map(|(name, _)| name);
            let is_wanted =
                wanted.iter().chain(besides).any(|name| program.name() == OsStr::new(name));
            program.set_autoload(is_wanted);
        }
        let reasons = bpf_load::drop_reasons(&btf).unwrap_or_else(|reason| {
            not_seen.push(format!("reasons of drops: {reason}"));
            DropReasons::default()
        });
        let object = bpf_load::load(object).map_err(TraceError::Kernel)?;
        let map =
            |name, key, value| bpf_load::map(&object, name, key, value).map_err(TraceError::Kernel);
        let filters = map("filters", 4, FILTER_BYTES)?;
        let (spaces, tunnels) = (map("spaces", 4, 4)?, map("tunnels", 2, 2)?);
        let (origins, lost) = (map("origins", 8, 4)?, map("lost", 4, 8)?);
        let costs = map("costs", 4, COST_BYTES)?;
        let events = map("events", 0, 0)?;
        let allowance = match filter.drops_only {
            true => {
                let (allowed, not_told) = (map("allowed", 4, 8)?, map("not_told", KEY_BYTES, 8)?);
                let allowance = Allowance::new(allowed, not_told);
                Some(allowance.map_err(failed("writing how many drops may be told"))?)
            }
            false => None,
        };
        let (came, room) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0_usize)));
        let mut builder = RingBufferBuilder::new();
        let (into, left) = (Rc::clone(&came), Rc::clone(&room));
        let read = Rc::new(Cell::new(0_u64));
        let count = Rc::clone(&read);
        let take = move |bytes: &[u8]| {
            debug_assert!(bytes.len() >= EVENT_BYTES);
            into.borrow_mut().extend(Event::parse(bytes));
            left.set(left.get().saturating_sub(1));
            count.set(count.get() + 1);
            // Ends the reading, which would else go on as long as events come.
            if left.get() == 0 { -(Errno::EAGAIN as i32) } else { 0 }
        };
        builder.add(&events, take).map_err(failed("opening the ring of events"))?;
        let ring = builder.build().map_err(failed("opening the ring of events"))?;
        let mut tracer = Tracer {
            ring,
            came,
            room,
            filters,
            spaces,
            tunnels,
            origins,
            lost,
            allowance,
            read,
            costs,
            call: CALL,
            sample: filter.sample.max(1),
            filter,
            translated: Vec::new(),
            window: None,
            bits: Bits::default(),
            reasons,
            functions: RefCell::default(),
            not_seen,
            object,
            wanted,
            links: Vec::new(),
        };
        for inode in &tracer.filter.netns {
            let one = 1_u32.to_ne_bytes();
            let put = tracer.spaces.update(&inode.to_ne_bytes(), &one, MapFlags::ANY);
            put.map_err(failed("adding a namespace"))?;
        }
        tracer.know(places)?;
        tracer.write()?;
        Ok(tracer)
    }

    fn attach(&mut self) -> Result<(), TraceError> {
        let is_wanted = |name: &OsStr| self.wanted.iter().any(|wanted| name == OsStr::new(wanted));
        for program in self.object.progs_mut().filter(|program| is_wanted(program.name())) {
            let link = program.attach().map_err(failed("attaching to a trace point"))?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Opens a window: from now on one packet in so many is followed, of those that begin in it.
    ///
    /// # Errors
    /// Where a program cannot be attached.
    pub(crate) fn open(&mut self, sample: u32) -> Result<(), TraceError> {
        self.window = self.window.map(|window| window.wrapping_add(1));
        // A packet that begins before all programs are there would lack steps.
        self.sample(0)?;
        self.attach()?;
        self.sample(sample)
    }

    /// Ends a window: nothing is attached any more.
    pub(crate) fn close(&mut self) {
        self.links.clear();
    }

    /// CPU time that the programs took, over all windows: what they took themselves, of which
    /// some runs are timed, and the trace point's call for each.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub(crate) fn cost(&self) -> Result<Cost, TraceError> {
        let values = self.costs.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let values = values.map_err(failed("reading what the programs cost"))?;
        let mut sums = [0_u64; 3];
        for value in values.unwrap_or_default() {
            for (sum, bytes) in sums.iter_mut().zip(value.chunks_exact(8)) {
                *sum += bytes.try_into().map_or(0, u64::from_ne_bytes);
            }
        }
        let [runs, timed, ns] = sums;
        // Multiplied first: a mean in whole ns would jump, and with it the time of all runs.
        let own = u128::from(ns) * u128::from(runs) / u128::from(timed.max(1));
        let took = self.call.as_nanos() * u128::from(runs) + own;
        Ok(Cost { runs, took: Duration::from_nanos(u64::try_from(took).unwrap_or(u64::MAX)) })
    }

    /// Which packets are wanted.
    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Looks into tunnels, and chooses packets, at these places, too.
    ///
    /// # Errors
    /// Where there are more than the program can tell apart.
    pub fn know(&mut self, places: &Places) -> Result<(), TraceError> {
        let mut bits = self.bits;
        for (port, encapsulation) in places.tunnel_ports() {
            let kind = encapsulation.number().to_ne_bytes();
            let put = self.tunnels.update(&port.to_be_bytes(), &kind, MapFlags::ANY);
            put.map_err(failed("adding a tunnel's port"))?;
            bits.tunnels |= 1 << (port % 64);
        }
        for (netns, index) in places.origins() {
            let key = u64::from(netns) << 32 | u64::from(index);
            let put = self.origins.update(&key.to_ne_bytes(), &[0; 4], MapFlags::ANY);
            put.map_err(failed("adding a device where packets come in"))?;
            bits.origins |= 1 << ((netns ^ index) % 64);
        }
        if bits != self.bits {
            self.bits = bits;
            self.write()?;
        }
        Ok(())
    }

    /// From now on one packet in so many begins to be followed; with 0 none does.
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn sample(&mut self, one_in: u32) -> Result<(), TraceError> {
        self.sample = one_in;
        self.write().map(|_| ())
    }

    /// Wants these flows, too: what the wanted ones are translated to. Answers how many of
    /// them found no room.
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn follow(&mut self, translated: &[FlowPattern]) -> Result<usize, TraceError> {
        self.translated = translated.to_vec();
        self.write()
    }

    /// Tells the programs which packets are wanted.
    fn write(&self) -> Result<usize, TraceError> {
        let (bytes, left_out) = self.filter.emit(&Emitted {
            translated: &self.translated,
            sample: self.sample,
            window: self.window,
            origins: self.bits.origins,
            tunnels: self.bits.tunnels,
        });
        let put = self.filters.update(&0_u32.to_ne_bytes(), &bytes, MapFlags::ANY);
        put.map_err(failed("writing the filter"))?;
        Ok(left_out)
    }

    /// Reads namespaces, devices and connections anew: what came since, and what wanted flows
    /// are translated to.
    ///
    /// # Errors
    /// Where `/proc` cannot be listed or a map not be written.
    pub fn refresh(&mut self) -> Result<Places, TraceError> {
        let mut found = Vec::new();
        let places = Places::of_machine_with(&mut |_, netns| {
            if !self.filter.flows.is_empty() {
                add_translated(netns, &self.filter.flows, &mut found);
                // The ring fills meanwhile. Whether it can be read, the next poll tells.
                let _ = self.read(MOST_AT_ONCE, None);
            }
        })?;
        self.know(&places)?;
        if !found.is_empty() {
            self.follow(&found)?;
        }
        Ok(places)
    }

    /// What was seen, after this time at the latest.
    ///
    /// # Errors
    /// Where the ring cannot be read.
    pub fn poll(&self, limit: Duration) -> Result<Vec<Event>, TraceError> {
        // Programs wake nobody then: to be woken costs those whose packets are seen.
        let is_quiet = self.window.is_some() || self.allowance.is_some();
        if is_quiet {
            std::thread::sleep(limit);
        }
        // Some may have come while namespaces were read.
        let is_due = !self.came.borrow().is_empty();
        let limit = if is_due { Duration::ZERO } else { limit };
        // In a flood more come than are taken: what they cost is looked at in between.
        self.read(MOST_AT_ONCE, (!is_quiet).then_some(limit))?;
        if let Some(allowance) = &self.allowance {
            let renewed = allowance.renew(self.read.get());
            renewed.map_err(failed("writing how many drops may be told"))?;
        }
        Ok(self.taken())
    }

    /// What is left in the ring when nothing is attached any more.
    pub(crate) fn rest(&self) -> Result<Vec<Event>, TraceError> {
        self.read(usize::MAX, None)?;
        Ok(self.taken())
    }

    /// Takes events out of the ring, at most so many; where there is none, waits for one when it is
    /// to.
    fn read(&self, most: usize, wait: Option<Duration>) -> Result<(), TraceError> {
        use libbpf_rs::ErrorKind::{Interrupted, WouldBlock};
        self.room.set(most);
        let read = match wait {
            Some(limit) => self.ring.poll(limit),
            None => self.ring.consume(),
        };
        match read {
            // All were taken that may be; or a signal: whoever asks looks whether to go on.
            Err(error) if !matches!(error.kind(), Interrupted | WouldBlock) => {
                Err(failed("reading the ring of events")(error))
            }
            _ => Ok(()),
        }
    }

    /// What was taken out of the ring.
    fn taken(&self) -> Vec<Event> {
        let mut came = std::mem::take(&mut *self.came.borrow_mut());
        // Each CPU reserves its place and then writes.
        came.sort_by_key(|event| event.time);
        came
    }

    /// Events that found no room, since the beginning.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn lost(&self) -> Result<u64, TraceError> {
        let values = self.lost.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let values = values.map_err(failed("reading the count of lost events"))?;
        let count = |bytes: Vec<u8>| bytes.try_into().map_or(0, u64::from_ne_bytes);
        Ok(values.unwrap_or_default().into_iter().map(count).sum())
    }

    /// Drops that were counted and not told one by one, since the beginning; where not only drops
    /// are told, none.
    ///
    /// # Errors
    /// Where the map cannot be read.
    pub fn not_told(&self) -> Result<Vec<NotTold>, TraceError> {
        let Some(allowance) = &self.allowance else { return Ok(Vec::new()) };
        let counts = allowance.not_told().map_err(failed("reading the counts of drops"))?;
        let locations: Vec<u64> = counts.keys().map(|(location, _)| *location).collect();
        self.look_up(&locations);
        let named = counts.into_iter().map(|((location, reason), packets)| {
            ((self.reason(reason), self.function(location)), packets)
        });
        Ok(NotTold::summed(named))
    }

    /// The kernel's name of a reason.
    pub fn reason(&self, reason: u32) -> String {
        self.reasons.name(reason)
    }

    /// The kernel's function around an address, where it tells.
    pub fn function(&self, location: u64) -> Option<String> {
        self.look_up(&[location]);
        self.functions.borrow().get(&location).cloned().flatten()
    }

    /// Functions around these addresses, all at once: the kernel has more than 100,000.
    fn look_up(&self, locations: &[u64]) {
        let mut functions = self.functions.borrow_mut();
        let is_unknown = |location: &&u64| !functions.contains_key(*location);
        let unknown: Vec<u64> = locations.iter().filter(is_unknown).copied().collect();
        if !unknown.is_empty() {
            functions.extend(bpf_load::functions(&unknown));
        }
    }
}
