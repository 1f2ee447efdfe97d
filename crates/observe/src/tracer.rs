//! The programs of `bpf/trace.bpf.c`, loaded, attached and read.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::rc::Rc;
use std::time::Duration;

use bpf_load::DropReasons;
use libbpf_rs::btf::types::{FuncProto, Typedef};
use libbpf_rs::btf::{Btf, ReferencesType};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};

use crate::event::{EVENT_BYTES, Event};
use crate::expression::put_into;
use crate::filter::{FILTER_BYTES, Filter, FlowPattern};
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

/// Programs at work, until it is dropped.
pub struct Tracer {
    ring: RingBuffer<'static>,
    /// What the ring held, filled while it is polled.
    came: Rc<RefCell<Vec<Event>>>,
    filters: MapHandle,
    spaces: MapHandle,
    tunnels: MapHandle,
    origins: MapHandle,
    lost: MapHandle,
    filter: Filter,
    reasons: DropReasons,
    functions: RefCell<BTreeMap<u64, Option<String>>>,
    /// What this kernel lacks, in words.
    pub not_seen: Vec<String>,
    // Dropping them detaches the programs.
    _links: Vec<Link>,
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
        let programs = put_into(OBJECT, filter.expression.as_ref()).map_err(TraceError::Kernel)?;
        let (mut object, btf) = bpf_load::open(&programs).map_err(TraceError::Kernel)?;
        let got = arguments(&btf, "kfree_skb").unwrap_or(0);
        let drops = DROPS.iter().find(|(least, _)| got >= *least).map(|(_, program)| *program);
        let drops = drops.ok_or_else(|| {
            let problem = "the kernel has no trace point skb:kfree_skb with 3 arguments or more";
            TraceError::Kernel(problem.to_owned())
        })?;
        let mut wanted = vec![drops];
        let mut not_seen = Vec::new();
        for (program, what) in OTHERS.iter().filter(|_| !filter.drops_only) {
            match arguments(&btf, program) {
                Some(_) => wanted.push(program),
                None => not_seen.push(format!("{what}: no trace point {program}")),
            }
        }
        for mut program in object.progs_mut() {
            let is_wanted = wanted.iter().any(|name| program.name() == OsStr::new(name));
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
        let events = map("events", 0, 0)?;
        let came = Rc::new(RefCell::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        let into = Rc::clone(&came);
        let take = move |bytes: &[u8]| {
            debug_assert!(bytes.len() >= EVENT_BYTES);
            into.borrow_mut().extend(Event::parse(bytes));
            0
        };
        builder.add(&events, take).map_err(failed("opening the ring of events"))?;
        let ring = builder.build().map_err(failed("opening the ring of events"))?;
        let mut tracer = Tracer {
            ring,
            came,
            filters,
            spaces,
            tunnels,
            origins,
            lost,
            filter,
            reasons,
            functions: RefCell::default(),
            not_seen,
            _links: Vec::new(),
        };
        for inode in &tracer.filter.netns {
            let one = 1_u32.to_ne_bytes();
            let put = tracer.spaces.update(&inode.to_ne_bytes(), &one, MapFlags::ANY);
            put.map_err(failed("adding a namespace"))?;
        }
        tracer.know(places)?;
        tracer.follow(&[])?;
        let is_wanted = |name: &OsStr| wanted.iter().any(|wanted| name == OsStr::new(wanted));
        for program in object.progs_mut().filter(|program| is_wanted(program.name())) {
            let link = program.attach().map_err(failed("attaching to a trace point"))?;
            tracer._links.push(link);
        }
        Ok(tracer)
    }

    /// Which packets are wanted.
    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Looks into tunnels, and chooses packets, at these places, too.
    ///
    /// # Errors
    /// Where there are more than the program can tell apart.
    pub fn know(&self, places: &Places) -> Result<(), TraceError> {
        for (port, encapsulation) in places.tunnel_ports() {
            let kind = encapsulation.number().to_ne_bytes();
            let put = self.tunnels.update(&port.to_be_bytes(), &kind, MapFlags::ANY);
            put.map_err(failed("adding a tunnel's port"))?;
        }
        for (netns, index) in places.origins() {
            let key = u64::from(netns) << 32 | u64::from(index);
            let put = self.origins.update(&key.to_ne_bytes(), &[0; 4], MapFlags::ANY);
            put.map_err(failed("adding a device where packets come in"))?;
        }
        Ok(())
    }

    /// From now on one packet in so many.
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn sample(&mut self, one_in: u32) -> Result<(), TraceError> {
        self.filter.sample = one_in.max(1);
        self.follow(&[]).map(|_| ())
    }

    /// Wants these flows, too: what the wanted ones are translated to. Answers how many of
    /// them found no room.
    ///
    /// # Errors
    /// Where the map cannot be written.
    pub fn follow(&self, translated: &[FlowPattern]) -> Result<usize, TraceError> {
        let (bytes, left_out) = self.filter.emit(translated);
        let put = self.filters.update(&0_u32.to_ne_bytes(), &bytes, MapFlags::ANY);
        put.map_err(failed("writing the filter"))?;
        Ok(left_out)
    }

    /// Reads namespaces, devices and connections anew: what came since, and what wanted flows
    /// are translated to.
    ///
    /// # Errors
    /// Where `/proc` cannot be listed or a map not be written.
    pub fn refresh(&self) -> Result<Places, TraceError> {
        let mut found = Vec::new();
        let places = Places::of_machine_with(&mut |_, netns| {
            if !self.filter.flows.is_empty() {
                add_translated(netns, &self.filter.flows, &mut found);
                // The ring fills meanwhile. Whether it can be read, the next poll tells.
                let _ = self.ring.consume();
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
        // Some may have come while namespaces were read.
        let limit = if self.came.borrow().is_empty() { limit } else { Duration::ZERO };
        match self.ring.poll(limit) {
            Ok(()) => {}
            // A signal: whoever asks looks whether to go on.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("reading the ring of events")(error)),
        }
        let mut came = std::mem::take(&mut *self.came.borrow_mut());
        // Each CPU reserves its place and then writes.
        came.sort_by_key(|event| event.time);
        Ok(came)
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

    /// The kernel's name of a reason.
    pub fn reason(&self, reason: u32) -> String {
        self.reasons.name(reason)
    }

    /// The kernel's function around an address, where it tells.
    pub fn function(&self, location: u64) -> Option<String> {
        let mut functions = self.functions.borrow_mut();
        if !functions.contains_key(&location) {
            functions.extend(bpf_load::functions(&[location]));
        }
        functions.get(&location).cloned().flatten()
    }
}
