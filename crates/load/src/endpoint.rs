//! The two endpoints of a load. Each is a set of threads in one namespace and shares nothing with
//! the other endpoint but the network, so the server may run on another machine. An endpoint is
//! started, moved through the phases, asked for its counters, and ended.

use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use results::TcpState;
use results::stats::median;
use sys::netns::NetNs;

use super::control::{Control, FlowCount, Phase, TICK};
use super::counted::{Counted, ServerReport};
use super::flow::{Flow, FlowReport};
use super::hello::{HELLO_BYTES, Hello, serves};
use super::udp_path::Newcomers;
use super::{
    End, EngineError, Load, Stage, Workload, marks, tcp_crr, tcp_maerts, tcp_rr, tcp_stream,
    udp_rr, udp_stream,
};

/// Enough for a flow's thread: buffers are on the heap.
const STACK_BYTES: usize = 256 * 1024;

/// The client's or the server's threads. Dropping it ends them within a tick.
#[derive(Debug)]
pub struct Endpoint {
    end: End,
    /// Start of its clock.
    begun: Instant,
    control: Arc<Control>,
    streams: Streams,
    /// Number of the load's own flows, without those beside them.
    flows: u32,
    threads: Vec<JoinHandle<FlowReport>>,
}

/// Segments that the connections of an end have sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Segments {
    pub retransmitted: u64,
    /// Delivered, and marked CE; `None` without connections, or if one has no ECN.
    pub ecn: Option<(u64, u64)>,
}

/// Open connections with the index of their flow.
type Streams = Arc<Mutex<Vec<(u32, TcpStream)>>>;

/// State that the threads share besides the control.
struct Shared {
    end: End,
    load: Load,
    /// Loads of the flows after the load's own ([`Load::beside`]).
    beside: Vec<Load>,
    address: SocketAddr,
    token: u64,
    control: Arc<Control>,
    streams: Streams,
    listener: Listener,
    /// Only peer that a server answers; `None`: any peer with the token.
    peer: Option<IpAddr>,
    /// UDP flows that already have a thread.
    taken: Box<[AtomicBool]>,
}

enum Listener {
    None,
    Tcp(TcpListener),
    /// For datagrams, and for the connections beside them if there are any.
    Udp(UdpSocket, Option<TcpListener>),
}

impl Endpoint {
    /// Binds `listen` in the namespace and serves the load's flows. `token` identifies the load at
    /// both endpoints. If `peer` is given, the server sends nothing to other addresses.
    ///
    /// # Errors
    /// [`EngineError::Local`] if the address cannot be bound or threads cannot be created.
    pub fn server(
        load: &Load,
        netns: &NetNs,
        listen: SocketAddr,
        token: u64,
        peer: Option<IpAddr>,
    ) -> Result<Endpoint, EngineError> {
        let listener = netns.run(|| -> Result<Listener, EngineError> {
            Ok(if load.workload.is_tcp() {
                let nodelay = !load.workload.is_byte_stream();
                Listener::Tcp(sys::tcp::listen(listen, &load.tcp_options(nodelay))?)
            } else {
                let beside =
                    load.beside.map(|_| sys::tcp::listen(listen, &load.tcp_options(false)));
                let socket = sys::udp::bind_shared(listen)?;
                socket.set_read_timeout(Some(TICK)).map_err(|e| {
                    sys::Error::io("setsockopt(SO_RCVTIMEO)", format!("UDP {listen}"), &e)
                })?;
                Listener::Udp(socket, beside.transpose()?)
            })
        })??;
        Endpoint::start(End::Server, load, netns, listen, token, listener, peer)
    }

    /// Connects the load's flows to `target` from within the namespace.
    ///
    /// # Errors
    /// [`EngineError::Local`] if threads cannot be created. Errors of the path are returned by
    /// [`failure`](Endpoint::failure).
    pub fn client(
        load: &Load,
        netns: &NetNs,
        target: SocketAddr,
        token: u64,
    ) -> Result<Endpoint, EngineError> {
        Endpoint::start(End::Client, load, netns, target, token, Listener::None, None)
    }

    fn start(
        end: End,
        load: &Load,
        netns: &NetNs,
        address: SocketAddr,
        token: u64,
        listener: Listener,
        peer: Option<IpAddr>,
    ) -> Result<Endpoint, EngineError> {
        let control = Arc::new(Control::new(load.all_flows()));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::new(Shared {
            end,
            load: load.clone(),
            beside: load.loads_beside(),
            address,
            token,
            control: Arc::clone(&control),
            streams: Arc::clone(&streams),
            listener,
            peer,
            taken: (0..load.all_flows()).map(|_| AtomicBool::new(false)).collect(),
        });
        // If a later thread cannot be created, dropping this ends the earlier ones.
        let (begun, flows, threads) = (Instant::now(), load.flows, Vec::new());
        let mut endpoint = Endpoint { end, begun, control, streams, flows, threads };
        for index in 0..load.all_flows() {
            let shared = Arc::clone(&shared);
            let netns = netns.try_clone()?;
            let thread = std::thread::Builder::new()
                .name(format!("{end}-{index}"))
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    let mut report = FlowReport { index, ..FlowReport::default() };
                    let outcome = netns
                        .enter_for_good()
                        .map_err(EngineError::from)
                        .and_then(|()| shared.run(index, &mut report));
                    if let Err(error) = outcome {
                        shared.control.fail(error);
                    }
                    report
                })
                .map_err(|e| sys::Error::io("clone", format!("thread of flow {index}"), &e))?;
            endpoint.threads.push(thread);
        }
        Ok(endpoint)
    }

    /// Returns the first flow that has not proved its path yet.
    pub fn waits_for(&self) -> Option<u32> {
        self.control.first_not_ready()
    }

    /// Moves the threads to a phase. The last phase wakes threads that wait for their peer.
    pub fn turn_to(&self, phase: Phase) {
        self.control.turn_to(phase);
        if phase == Phase::Done {
            // A connection registered after this belongs to a flow that checks the phase before
            // it waits.
            for (_, stream) in self.streams.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                // Fails only if the connection has already ended.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Returns the first flow that has not acted yet on a phase that the client of `udp_stream`
    /// acknowledges (it stopped sending, or proved the path again). Flows beside the load go on
    /// until its end.
    pub fn not_yet_at(&self, phase: Phase) -> Option<u32> {
        self.control.first_not_at(phase).filter(|flow| *flow < self.flows)
    }

    /// Returns every flow's counters.
    pub fn counts(&self) -> Vec<FlowCount> {
        self.control.counts()
    }

    /// Returns every flow's counters and the time of the reading.
    pub fn counted(&self) -> Counted {
        Counted { at: self.begun.elapsed(), flows: self.counts() }
    }

    /// Takes the first failure of a flow.
    pub fn failure(&self) -> Option<EngineError> {
        self.control.take_failure()
    }

    /// Returns the segments of all open connections since they began, without those beside the load.
    pub(super) fn segments(&self) -> Segments {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let own = streams.iter().filter(|(flow, _)| *flow < self.flows);
        let states: Vec<_> = own.filter_map(|(_, stream)| sys::tcp::state(stream).ok()).collect();
        let ecn = states.iter().try_fold((0, 0), |(delivered, ce), state| {
            let (more, marked) = marks::delivered(state)?;
            Some((delivered + more, ce + marked))
        });
        Segments {
            retransmitted: states.iter().map(|state| u64::from(state.retransmitted)).sum(),
            ecn: ecn.filter(|_| !states.is_empty()),
        }
    }

    /// Returns the state of the open connections, medians over them, without those beside the load;
    /// `None` without any.
    pub fn tcp_state(&self) -> Option<TcpState> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let own =
            || streams.iter().filter(|(flow, _)| *flow < self.flows).map(|(_, stream)| stream);
        let states: Vec<_> = own().filter_map(|stream| sys::tcp::state(stream).ok()).collect();
        let of = |figure: fn(&sys::tcp::TcpInfo) -> u32| {
            median(&states.iter().map(|state| f64::from(figure(state))).collect::<Vec<_>>())
        };
        Some(TcpState {
            // All connections of a load have the namespace's default.
            congestion_control: sys::tcp::congestion_control(own().next()?).ok()?,
            rtt_us: of(|state| state.rtt_us)?,
            cwnd: of(|state| state.cwnd)?,
        })
    }

    /// Ends the threads and returns their reports by flow.
    ///
    /// # Errors
    /// [`EngineError::Panicked`].
    pub(super) fn finish(mut self) -> Result<BTreeMap<u32, FlowReport>, EngineError> {
        self.turn_to(Phase::Done);
        let mut reports = BTreeMap::new();
        for thread in std::mem::take(&mut self.threads) {
            let report = thread.join().map_err(|panic| {
                let text = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied());
                EngineError::Panicked(format!("{}: {}", self.end, text.unwrap_or("no message")))
            })?;
            reports.insert(report.index, report);
        }
        Ok(reports)
    }
}

impl Endpoint {
    /// Like `finish`, for a server.
    ///
    /// # Errors
    /// [`EngineError::Panicked`].
    pub fn finish_serving(self) -> Result<BTreeMap<u32, ServerReport>, EngineError> {
        Ok(self.finish()?.into_iter().map(|(flow, report)| (flow, report.into())).collect())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.turn_to(Phase::Done);
        for thread in self.threads.drain(..) {
            // A panic has already been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Listener::Tcp(listener) | Listener::Udp(_, Some(listener)) = &self.listener {
            sys::tcp::stop_listening(listener);
        }
    }
}

impl Shared {
    /// Returns the load of a flow: the load itself, or one beside it.
    fn load_of(&self, index: u32) -> &Load {
        let beside = index.checked_sub(self.load.flows);
        beside.and_then(|at| self.beside.get(at as usize)).unwrap_or(&self.load)
    }

    fn flow(&self, index: u32) -> Flow<'_> {
        Flow {
            index,
            end: self.end,
            load: self.load_of(index),
            address: self.address,
            token: self.token,
            control: &self.control,
        }
    }

    fn run(&self, index: u32, report: &mut FlowReport) -> Result<(), EngineError> {
        self.note_buffers(report)?;
        match &self.listener {
            Listener::None => self.run_client(index, report),
            Listener::Tcp(listener) => self.serve_tcp(index, listener, report),
            Listener::Udp(_, Some(beside)) if index >= self.load.flows => {
                self.serve_tcp(index, beside, report)
            }
            Listener::Udp(listener, _) => self.serve_udp(listener, report),
        }
    }

    /// Notes if the kernel grants smaller buffers than requested. It asks with a separate
    /// socket, since the result depends on the machine's limits only.
    fn note_buffers(&self, report: &mut FlowReport) -> Result<(), EngineError> {
        let Some(asked) = self.load.buffer_bytes() else { return Ok(()) };
        let object = "probe socket for buffer sizes";
        let probe = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0)))
            .map_err(|e| sys::Error::io("bind", object, &e))?;
        let granted = sys::buffers::set(&probe, asked)
            .map_err(|(operation, errno)| sys::Error::new(operation, object, errno))?;
        for (option, granted, limit) in [
            ("SO_SNDBUF", granted.send, "net.core.wmem_max"),
            ("SO_RCVBUF", granted.receive, "net.core.rmem_max"),
        ] {
            if granted < asked {
                report.notes.push(format!(
                    "{option} of {asked} bytes was requested, {granted} granted ({limit}, without \
                     CAP_NET_ADMIN)"
                ));
            }
        }
        Ok(())
    }

    /// Pins the thread to its CPU and records the resulting affinity.
    fn place(&self, cpu: Option<usize>, report: &mut FlowReport) -> Result<(), EngineError> {
        if let Some(cpu) = cpu {
            sys::affinity::pin(cpu)?;
        }
        report.cpus = sys::affinity::of_this_thread()?;
        Ok(())
    }

    fn run_client(&self, index: u32, report: &mut FlowReport) -> Result<(), EngineError> {
        self.place(self.load.client_cpu(index), report)?;
        let flow = self.flow(index);
        match flow.load.workload {
            Workload::TcpStream => tcp_stream::send(&flow, &self.connection(&flow)?, |_| {}),
            // The server may close the connection at the end of the load before this flow notices.
            Workload::TcpMaerts => {
                self.unless_over(tcp_maerts::client(&flow, &self.connection(&flow)?))
            }
            Workload::TcpRr => tcp_rr::client(&flow, &self.connection(&flow)?, report),
            Workload::TcpCrr => tcp_crr::client(&flow, report),
            Workload::UdpStream => udp_stream::client(&flow, report),
            Workload::UdpRr => udp_rr::client(&flow, report),
        }
    }

    /// Opens a connection and identifies its flow to the server.
    fn connection(&self, flow: &Flow<'_>) -> Result<TcpStream, EngineError> {
        let stream = flow.connect(!flow.load.workload.is_byte_stream())?;
        flow.prove_ecn(&stream)?;
        flow.say_hello(&stream)?;
        self.connected(flow, &stream)?;
        Ok(stream)
    }

    /// Ignores a closed connection once the load is over, since no more data was expected.
    fn unless_over(&self, served: Result<(), EngineError>) -> Result<(), EngineError> {
        match served {
            Err(EngineError::Closed { .. } | EngineError::Reset { .. })
                if self.control.phase() >= Phase::Closing =>
            {
                Ok(())
            }
            served => served,
        }
    }

    /// Marks a connection ready, and keeps a handle to read its counters and to shut it down.
    fn connected(&self, flow: &Flow<'_>, stream: &TcpStream) -> Result<(), EngineError> {
        if flow.load.waits_without_limit() {
            let unlimited = |e| flow.io_error(Stage::Hello, "setsockopt(SO_RCVTIMEO)", &e);
            stream.set_read_timeout(None).map_err(unlimited)?;
        }
        let handle = stream.try_clone().map_err(|e| sys::Error::io("dup", "TCP stream", &e))?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.push((flow.index, handle));
        drop(streams);
        flow.tally().ready.store(true, Ordering::Release);
        Ok(())
    }

    fn serve_tcp(
        &self,
        index: u32,
        listener: &TcpListener,
        report: &mut FlowReport,
    ) -> Result<(), EngineError> {
        if self.load.workload == Workload::TcpCrr {
            self.place(self.load.server_cpu(index), report)?;
            return tcp_crr::server(&self.flow(index), listener, self.peer, report);
        }
        let Some((index, stream)) = self.accept(listener, report)? else {
            return Ok(());
        };
        report.index = index;
        self.place(self.load.server_cpu(index), report)?;
        let flow = self.flow(index);
        if flow.load.workload.is_byte_stream() {
            // Beside requests, the listener has the option of the requests.
            let failed = |e| flow.io_error(Stage::Hello, "setsockopt(TCP_NODELAY)", &e);
            stream.set_nodelay(false).map_err(failed)?;
        }
        self.connected(&flow, &stream)?;
        // The client learns of the load's end first and may close its connection.
        self.unless_over(match flow.load.workload {
            Workload::TcpStream => tcp_stream::receive(&flow, &stream),
            Workload::TcpMaerts => tcp_maerts::server(&flow, &stream, report),
            _ => tcp_rr::server(&flow, &stream),
        })
    }

    /// Accepts connections until one identifies its flow.
    fn accept(
        &self,
        listener: &TcpListener,
        report: &mut FlowReport,
    ) -> Result<Option<(u32, TcpStream)>, EngineError> {
        while !self.control.is_done() {
            let stream = match listener.accept() {
                Ok((stream, from)) if serves(self.peer, from) => stream,
                // With a fixed peer the server sends nothing to other addresses.
                Ok(_) => {
                    // The connection is not from the client's address, or the flow is taken: it is
                    // counted and closed.
                    *report.socket_errors.entry("stranger accept".into()).or_default() += 1;
                    continue;
                }
                // No connection within a tick: check whether to go on.
                Err(e) if super::connection::is_a_tick(&e) => continue,
                Err(e) => {
                    return Err(
                        sys::Error::io("accept", format!("TCP {}", self.address), &e).into()
                    );
                }
            };
            // The flow is still unknown: flow 0 serves for reading only.
            let nobody = self.flow(0);
            let mut bytes = [0; HELLO_BYTES];
            let asked = nobody
                .read_exact(&stream, &mut bytes)
                .ok()
                .and_then(|()| Hello::asked(&bytes, self.token, self.load.all_flows()))
                // Datagrams identify their flow by themselves.
                .filter(|hello| self.load_of(hello.flow).workload.is_tcp());
            // A foreign program (a health check, a scanner): skip the connection.
            let Some(hello) = asked else {
                // Another program connected: it sent no valid hello.
                *report.socket_errors.entry("stranger accept".into()).or_default() += 1;
                continue;
            };
            // Another thread already serves this flow, which has a single connection.
            if self.taken[hello.flow as usize].swap(true, Ordering::AcqRel) {
                continue;
            }
            nobody.write_all(&stream, &hello.answer().emit())?;
            return Ok(Some((hello.flow, stream)));
        }
        Ok(None)
    }

    fn serve_udp(&self, listener: &UdpSocket, report: &mut FlowReport) -> Result<(), EngineError> {
        let newcomers = Newcomers {
            listener,
            listen: self.address,
            peer: self.peer,
            taken: &self.taken,
            load: &self.load,
            token: self.token,
            control: &self.control,
        };
        let (index, socket) = newcomers.next()?;
        report.index = index;
        self.place(self.load.server_cpu(index), report)?;
        let flow = self.flow(index);
        match self.load.workload {
            Workload::UdpStream => udp_stream::server(&flow, &socket, report),
            _ => udp_rr::server(&flow, &socket, report),
        }
    }
}
