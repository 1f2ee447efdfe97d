//! Probes a path before it is measured, so that no figure comes from a path that damages packets.
//!
//! The packets go over the path of the load: between the same namespaces and addresses, in both
//! directions. The crate `probe` has the classes of packets and the verdicts.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use probe::local::Between;
use probe::report::Report;
use probe::run::Options;
use results::PathProbe;
use sys::netns::NetNs;

use crate::confirmed_probe::confirmed;
use crate::path_under_test::{PathUnderTest, ServerEnd};

pub use crate::confirmed_probe::of_server;
pub use probe::end::Access;
pub use probe::run::Extent;

/// Bytes per second of each end on a path that nothing else uses yet.
pub const RATE: u32 = 50_000_000;
/// Datagrams that are tried to find the addresses of both ends.
const TRIES: u32 = 10;
/// Time for the answer to one of them.
const ANSWER: Duration = Duration::from_millis(100);

/// Probes a path. A finding counts only if a second probe finds damage again.
pub fn probe(path: &PathUnderTest, stop: &AtomicBool) -> PathProbe {
    let probed = match &path.server {
        // The client's guest probes the path to the other one.
        ServerEnd::Guests(guests) => guests.probe(stop).map_err(|error| error.to_string()),
        _ => confirmed(|| report(path, Access::open, Extent::Sample, RATE, stop)),
    };
    probed.unwrap_or_else(|reason| PathProbe { untested: vec![reason], ..PathProbe::default() })
}

/// Runs a probe over a path, with these sockets. Each end sends at most `rate` bytes per second.
///
/// # Errors
/// Why the path cannot be probed, as text.
pub fn report(
    path: &PathUnderTest,
    access: fn() -> Access,
    extent: Extent,
    rate: u32,
    stop: &AtomicBool,
) -> Result<Report, String> {
    let (server, target, listen) = match &path.server {
        ServerEnd::Here { place, target, listen } => (*place, *target, *listen),
        // A guest probes its own path before the first load.
        ServerEnd::Guests(_) => return Err("client and server run in virtual machines".to_owned()),
        ServerEnd::Away(_) => return Err("the server is another process".to_owned()),
    };
    let (client, server) = (&*path.places[path.client].netns, &*path.places[server].netns);
    let (own, seen) = meet(client, server, target, listen)?;
    let between = Between {
        namespaces: [client, server],
        client: (own, target.ip()),
        server: (listen.ip(), seen),
        access: [access; 2],
        rate,
        settings: None,
    };
    let options = Options { extent, rate, ..Options::default() };
    between.run(&options, None, stop).map_err(|trouble| trouble.to_string())
}

/// Exchanges datagrams until both ends know the hardware address of the next hop. Returns the
/// client's own address, and its address at the server, which may be translated.
fn meet(
    client: &NetNs,
    server: &NetNs,
    target: SocketAddr,
    listen: SocketAddr,
) -> Result<(IpAddr, IpAddr), String> {
    let there = server.run(|| UdpSocket::bind(listen)).map_err(|e| e.to_string())?;
    let there = there.map_err(|e| format!("server: bind {listen}: {e}"))?;
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let here = client.run(|| {
        let socket = UdpSocket::bind(any)?;
        socket.connect(target)?;
        Ok(socket)
    });
    let here = here.map_err(|e| e.to_string())?;
    let here = here.map_err(|e: std::io::Error| format!("client: connect {target}: {e}"))?;
    let own = here.local_addr().map_err(|e| e.to_string())?.ip();
    for socket in [&here, &there] {
        socket.set_read_timeout(Some(ANSWER)).map_err(|e| e.to_string())?;
    }
    let mut buffer = [0; 64];
    for _ in 0..TRIES {
        // An ICMP error about an earlier datagram may come first: try again.
        if here.send(b"overlane").is_err() {
            continue;
        }
        let Ok((_, seen)) = there.recv_from(&mut buffer) else { continue };
        if there.send_to(b"overlane", seen).is_ok() && here.recv(&mut buffer).is_ok() {
            return Ok((own, seen.ip()));
        }
    }
    Err(format!("no datagram to {target} was answered"))
}
