//! Loads, attaches and reads the programs of `bpf/trace.bpf.c`.

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
use crate::filter::{Emitted, FILTER_BYTES, Filter};
use crate::places::Places;
use crate::suppressed::{Allowance, KEY_BYTES, Suppressed};
use crate::translated::{ENDS_BYTES, Translations};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.bpf.o"));

/// Programs for the trace point of drops, by its number of arguments (including the data pointer of
/// trace points).
const DROPS: [(u32, &str); 3] =
    [(5, "kfree_skb_of_socket"), (4, "kfree_skb_reason"), (3, "kfree_skb")];

/// Trace points that may be missing, and what cannot be observed without them.
const OTHERS: [(&str, &str); 9] = [
    ("net_dev_queue", "packets before they are queued or segmented"),
    ("net_dev_start_xmit", "packets that devices send"),
    ("netif_rx", "packets that wait in a CPU's backlog"),
    ("napi_gro_receive_entry", "packets before GRO"),
    ("netif_receive_skb", "packets that devices receive"),
    ("skb_copy_datagram_iovec", "reads of packets from sockets"),
    ("tcp_probe", "segments that connections receive"),
    ("sk_data_ready", "datagrams that sockets receive"),
    ("consume_skb", "the end of packets that were consumed"),
];

/// Size of `struct cost` in the C source.
const COST_BYTES: usize = 24;
/// Maximum number of events that [`Tracer::poll`] takes at once.
pub const MOST_AT_ONCE: usize = 8192;

/// The empty program that [`call_cost`] attaches, and its trace point.
const EMPTY: (&str, &str) = ("empty", "skb_copy_datagram_iovec");

/// Assumed cost of calling a program if it cannot be measured. Measured values were 22 to 39 ns (2
/// vCPUs of an Intel Xeon under KVM, Linux 6.18).
const CALL: Duration = Duration::from_nanos(40);
/// A longer measurement is an outlier: the machine did something else.
const LONGEST_CALL: Duration = Duration::from_micros(1);

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The kernel lacks a feature, or the process lacks privileges.
    #[error("{0}")]
    Kernel(String),
    /// Namespaces cannot be listed.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// A map or the ring of events failed.
    #[error("{operation}: {error}")]
    Bpf { operation: &'static str, error: libbpf_rs::Error },
}

fn failed(operation: &'static str) -> impl Fn(libbpf_rs::Error) -> TraceError {
    move |error| TraceError::Bpf { operation, error }
}

/// Cost of observing in windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Number of runs of the programs.
    pub runs: u64,
    /// Their CPU time, estimated.
    pub took: Duration,
}

/// The attached programs, until this value is dropped.
pub struct Tracer {
    ring: RingBuffer<'static>,
    /// Events read from the ring, filled while it is polled.
    came: Rc<RefCell<Vec<Event>>>,
    /// How many more events may be taken now.
    room: Rc<Cell<usize>>,
    filters: MapHandle,
    spaces: MapHandle,
    tunnels: MapHandle,
    origins: MapHandle,
    lost: MapHandle,
    /// Rate limit for reported drops, if only drops are reported.
    allowance: Option<Allowance>,
    /// Events read since the start.
    read: Rc<Cell<u64>>,
    costs: MapHandle,
    /// Cost of a run besides the program itself: the trace point's call.
    call: Duration,
    filter: Filter,
    /// Translated (NAT) forms of the filter's flows.
    translations: Translations,
    /// One packet in this many is selected; 0: none.
    sample: u32,
    /// Number of windows opened; `None`: packets are not followed in windows.
    window: Option<u32>,
    /// Bit masks of devices and ports, as in the filter.
    bits: Bits,
    reasons: DropReasons,
    functions: RefCell<BTreeMap<u64, Option<String>>>,
    /// Events that cannot be observed on this kernel.
    pub not_seen: Vec<String>,
    object: Object,
    /// Names of the programs that observe packets.
    wanted: Vec<&'static str>,
    // Dropping them detaches the programs.
    links: Vec<Link>,
}

/// Bit masks that spare the programs a map look-up for most packets.
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

/// Returns the number of arguments of a trace point, including the data pointer of trace points.
fn arguments(btf: &Btf<'_>, trace_point: &str) -> Option<u32> {
    let typedef = btf.type_by_name::<Typedef<'_>>(&format!("btf_trace_{trace_point}"))?;
    let function = FuncProto::try_from(typedef.referenced_type().next_type()?).ok()?;
    u32::try_from(function.len()).ok()
}

impl Tracer {
    /// Attaches the programs. From now on, every packet that matches `filter` is reported. Tunnel
    /// ports, and the devices where packets enter, come from `places`.
    ///
    /// # Errors
    /// If the kernel lacks BTF or these trace points, or the process lacks CAP_BPF or CAP_PERFMON.
    pub fn start(filter: Filter, places: &Places) -> Result<Tracer, TraceError> {
        let mut tracer = Tracer::load(filter, places, &[])?;
        tracer.attach()?;
        Ok(tracer)
    }

    /// Loads the programs for observation in windows: nothing is attached before the first one.
    pub(crate) fn in_windows(filter: Filter, places: &Places) -> Result<Tracer, TraceError> {
        let mut tracer = Tracer::load(filter, places, &[EMPTY])?;
        tracer.window = Some(0);
        tracer.call = tracer.measure_call();
        tracing::debug!(call = ?tracer.call, "cost of the kernel's call of a program");
        Ok(tracer)
    }

    /// Measures the cost of the kernel's call of a program on this machine.
    fn measure_call(&mut self) -> Duration {
        let empty = self.object.progs_mut().find(|program| program.name() == OsStr::new(EMPTY.0));
        let measured = empty.map(|program| call_cost(|| program.attach()));
        match measured {
            Some(Ok(call)) if !call.is_zero() => call.min(LONGEST_CALL),
            // Noise hid it, or this kernel lacks the trace point: the cost must not appear to be
            // zero.
            _ => CALL,
        }
    }

    /// Loads the programs that observe packets, and those in `besides`, with their trace points.
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
            // It reports UDP datagrams only, but runs for each packet of other protocols.
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
            not_seen.push(format!("drop reasons: {reason}"));
            DropReasons::default()
        });
        let object = bpf_load::load(object).map_err(TraceError::Kernel)?;
        let map =
            |name, key, value| bpf_load::map(&object, name, key, value).map_err(TraceError::Kernel);
        let filters = map("filters", 4, FILTER_BYTES)?;
        let (spaces, tunnels) = (map("spaces", 4, 4)?, map("tunnels", 2, 2)?);
        let (origins, lost) = (map("origins", 8, 4)?, map("lost", 4, 8)?);
        let (translated, noted) = (map("translated", ENDS_BYTES, 4)?, map("noted", 4, 1)?);
        let translations = Translations { translated, noted };
        let costs = map("costs", 4, COST_BYTES)?;
        let events = map("events", 0, 0)?;
        let allowance = match filter.drops_only {
            true => {
                let (allowed, suppressed) =
                    (map("allowed", 4, 8)?, map("suppressed", KEY_BYTES, 8)?);
                let allowance = Allowance::new(allowed, suppressed);
                Some(allowance.map_err(failed("writing the limit of reported drops"))?)
            }
            // Without --drops-only there is no limit of reported drops.
            false => None,
        };
        let (came, room) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0_usize)));
        let mut builder = RingBufferBuilder::new();
        let (into, left) = (Rc::clone(&came), Rc::clone(&room));
        let read = Rc::new(Cell::new(0_u64));
        let count = Rc::clone(&read);
        let take = move |bytes: &[u8]| {
            debug_assert!(bytes.len() >= EVENT_BYTES);
            // Records that cannot be parsed are skipped.
            into.borrow_mut().extend(Event::parse(bytes));
            left.set(left.get().saturating_sub(1));
            count.set(count.get() + 1);
            // Stop reading here; otherwise it would continue as long as events arrive.
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
            translations,
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

    /// Opens a window: from now on, one packet in `sample` is followed, among those that begin in
    /// the window.
    pub(crate) fn open(&mut self, sample: u32) -> Result<(), TraceError> {
        self.window = self.window.map(|window| window.wrapping_add(1));
        // A packet that begins before all programs are attached would lack steps.
        self.sample(0)?;
        self.attach()?;
        self.sample(sample)
    }

    /// Closes the window: detaches the programs.
    pub(crate) fn close(&mut self) {
        self.links.clear();
    }

    /// Returns the CPU time of the programs over all windows: their own run time, extrapolated from
    /// the runs that were timed, and the trace point's call for each run.
    pub(crate) fn cost(&self) -> Result<Cost, TraceError> {
        let values = self.costs.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let values = values.map_err(failed("reading the cost of the programs"))?;
        let mut sums = [0_u64; 3];
        for value in values.unwrap_or_default() {
            for (sum, bytes) in sums.iter_mut().zip(value.chunks_exact(8)) {
                *sum += bytes.try_into().map_or(0, u64::from_ne_bytes);
            }
        }
        let [runs, timed, ns] = sums;
        // Multiply first: a mean in whole ns would jump, and the total with it.
        let own = u128::from(ns) * u128::from(runs) / u128::from(timed.max(1));
        let took = self.call.as_nanos() * u128::from(runs) + own;
        Ok(Cost { runs, took: Duration::from_nanos(u64::try_from(took).unwrap_or(u64::MAX)) })
    }

    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Adds tunnel ports to parse, and devices where packets enter.
    ///
    /// # Errors
    /// If a map is full.
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
            put.map_err(failed("adding a device where packets enter"))?;
            bits.origins |= 1 << ((netns ^ index) % 64);
        }
        if bits != self.bits {
            self.bits = bits;
            self.write()?;
        }
        Ok(())
    }

    /// Follows one packet in `one_in` from now on; 0: none.
    pub fn sample(&mut self, one_in: u32) -> Result<(), TraceError> {
        self.sample = one_in;
        self.write()
    }

    /// Writes the filter for the programs.
    fn write(&self) -> Result<(), TraceError> {
        let bytes = self.filter.emit(&Emitted {
            sample: self.sample,
            window: self.window,
            origins: self.bits.origins,
            tunnels: self.bits.tunnels,
        });
        let put = self.filters.update(&0_u32.to_ne_bytes(), &bytes, MapFlags::ANY);
        put.map_err(failed("writing the filter"))
    }

    /// Reads namespaces, devices and connections again: finds new ones, and the translated forms of
    /// wanted flows.
    ///
    /// # Errors
    /// If `/proc` cannot be listed or a map cannot be written.
    pub fn refresh(&mut self) -> Result<Places, TraceError> {
        let mut added = Ok(());
        let places = Places::of_machine_with(&mut |_, netns| {
            if self.filter.is_by_flows() && added.is_ok() {
                added = self.translations.add_of(netns, &self.filter.flows);
                // The ring fills meanwhile, so empty it. If it cannot be read, the next poll
                // reports that.
                let _ = self.read(MOST_AT_ONCE, None);
            }
        })?;
        added.map_err(failed("adding translated flows"))?;
        self.know(&places)?;
        Ok(places)
    }

    /// Returns the events so far, after at most `limit`.
    pub fn poll(&self, limit: Duration) -> Result<Vec<Event>, TraceError> {
        // In these modes the programs wake no reader, because a wake-up costs the process whose
        // packet is observed. So sleep instead.
        let is_quiet = self.window.is_some() || self.allowance.is_some();
        if is_quiet {
            std::thread::sleep(limit);
        }
        // Events may have been taken while namespaces were read.
        let is_due = !self.came.borrow().is_empty();
        let limit = if is_due { Duration::ZERO } else { limit };
        // In a flood, more events arrive than are taken at once: check their cost in between.
        self.read(MOST_AT_ONCE, (!is_quiet).then_some(limit))?;
        if let Some(allowance) = &self.allowance {
            let renewed = allowance.renew(self.read.get());
            renewed.map_err(failed("writing the limit of reported drops"))?;
        }
        Ok(self.taken())
    }

    /// Returns the events left in the ring after all programs are detached.
    pub(crate) fn rest(&self) -> Result<Vec<Event>, TraceError> {
        self.read(usize::MAX, None)?;
        Ok(self.taken())
    }

    /// Takes at most `most` events out of the ring. If there is none, waits for one if `wait` is
    /// given.
    fn read(&self, most: usize, wait: Option<Duration>) -> Result<(), TraceError> {
        use libbpf_rs::ErrorKind::{Interrupted, WouldBlock};
        self.room.set(most);
        let read = match wait {
            Some(limit) => self.ring.poll(limit),
            None => self.ring.consume(),
        };
        match read {
            // The limit was reached, or a signal arrived: the caller checks whether to go on.
            Err(error) if !matches!(error.kind(), Interrupted | WouldBlock) => {
                Err(failed("reading the ring of events")(error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the events taken out of the ring, in order of time.
    fn taken(&self) -> Vec<Event> {
        let mut came = std::mem::take(&mut *self.came.borrow_mut());
        // CPUs reserve space and write later, so the ring is not in order of time.
        came.sort_by_key(|event| event.time);
        came
    }

    /// Returns the number of events lost because the ring was full, since the start.
    pub fn lost(&self) -> Result<u64, TraceError> {
        let values = self.lost.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let values = values.map_err(failed("reading the count of lost events"))?;
        let count = |bytes: Vec<u8>| bytes.try_into().map_or(0, u64::from_ne_bytes);
        Ok(values.unwrap_or_default().into_iter().map(count).sum())
    }

    /// Returns drops that were counted but not reported one by one, since the start; empty unless
    /// only drops are traced.
    pub fn suppressed(&self) -> Result<Vec<Suppressed>, TraceError> {
        let Some(allowance) = &self.allowance else { return Ok(Vec::new()) };
        let counts = allowance.suppressed().map_err(failed("reading the counts of drops"))?;
        let locations: Vec<u64> = counts.keys().map(|(location, _)| *location).collect();
        self.look_up(&locations);
        let named = counts.into_iter().map(|((location, reason), packets)| {
            ((self.reason(reason), self.function(location)), packets)
        });
        Ok(Suppressed::summed(named))
    }

    /// Returns the kernel's name of a drop reason.
    pub fn reason(&self, reason: u32) -> String {
        self.reasons.name(reason)
    }

    /// Returns the kernel function around an address, if known.
    pub fn function(&self, location: u64) -> Option<String> {
        self.look_up(&[location]);
        self.functions.borrow().get(&location).cloned().flatten()
    }

    /// Looks up the functions around these addresses, all at once: the kernel has more than
    /// 100,000.
    fn look_up(&self, locations: &[u64]) {
        let mut functions = self.functions.borrow_mut();
        let is_unknown = |location: &&u64| !functions.contains_key(*location);
        let unknown: Vec<u64> = locations.iter().filter(is_unknown).copied().collect();
        if !unknown.is_empty() {
            functions.extend(bpf_load::functions(&unknown));
        }
    }
}
