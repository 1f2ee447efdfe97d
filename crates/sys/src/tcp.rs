//! TCP sockets whose blocking operations all have a time limit, and kernel information about a
//! connection. Reading and writing use `std`.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::sockopt::{
    ReceiveTimeout, ReuseAddr, SendTimeout, SocketError, TcpCongestion, TcpNoDelay,
};
use nix::sys::socket::{
    AddressFamily, Shutdown, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
    getsockopt, setsockopt, shutdown, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::{Error, Result, buffers, dscp};

/// Maximum queue of connections waiting for `accept`; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Options for opening a socket.
#[derive(Debug, Clone, Copy)]
pub struct SocketOptions {
    /// Time limit for `accept`, `connect`, `recv` and `send`.
    pub limit: Duration,
    /// Disables the Nagle algorithm (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Size of both buffers in bytes ([`buffers::set`]); `None`: the kernel's default.
    pub buffer_bytes: Option<usize>,
    /// Mark of the packets ([`dscp::set`]); `None`: the kernel's default.
    pub dscp: Option<u8>,
}

/// Opens a stream socket for the family of the address, close-on-exec.
fn bounded_socket(
    address: &SocketAddr,
    options: &SocketOptions,
) -> std::result::Result<OwnedFd, (&'static str, Errno)> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp)
        .map_err(|e| ("socket", e))?;
    let limit = i64::try_from(options.limit.as_micros()).unwrap_or(i64::MAX);
    let limit = TimeVal::microseconds(limit);
    setsockopt(&fd, ReceiveTimeout, &limit).map_err(|e| ("setsockopt(SO_RCVTIMEO)", e))?;
    setsockopt(&fd, SendTimeout, &limit).map_err(|e| ("setsockopt(SO_SNDTIMEO)", e))?;
    setsockopt(&fd, TcpNoDelay, &options.nodelay).map_err(|e| ("setsockopt(TCP_NODELAY)", e))?;
    if let Some(bytes) = options.buffer_bytes {
        buffers::set(&fd, bytes)?;
    }
    if let Some(value) = options.dscp {
        dscp::set(&fd, address, value, false)?;
    }
    Ok(fd)
}

/// Listens on an address. `accept` returns `EAGAIN` after the time limit; accepted connections
/// inherit all options.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES` (ports below 1024).
pub fn listen(address: SocketAddr, options: &SocketOptions) -> Result<TcpListener> {
    let failed = |(operation, errno)| Error::new(operation, format!("TCP {address}"), errno);
    let fd = bounded_socket(&address, options).map_err(failed)?;
    setsockopt(&fd, ReuseAddr, &true).map_err(|e| failed(("setsockopt(SO_REUSEADDR)", e)))?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).map_err(|e| failed(("bind", e)))?;
    // nix refuses more than the C library's SOMAXCONN, which is 128 in musl. The kernel's limit is
    // net.core.somaxconn.
    // SAFETY: takes numbers only; the descriptor is open.
    let done = unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) };
    Errno::result(done).map_err(|e| failed(("listen", e)))?;
    Ok(TcpListener::from(fd))
}

/// Stops listening immediately. Closing would have an effect only with the last copy of the
/// descriptor. A child forked by another thread holds a copy until it calls `exec`, and the address
/// would stay in use for that time.
pub fn stop_listening(listener: &TcpListener) {
    // Fails only if it no longer listens.
    let _ = shutdown(listener.as_raw_fd(), Shutdown::Both);
}

/// A socket that is being connected.
#[derive(Debug)]
pub struct Connecting {
    fd: OwnedFd,
    established: bool,
}

impl Connecting {
    /// Sends the SYN and waits for the answer up to the time limit, which also applies to every
    /// later `recv` and `send`.
    ///
    /// # Errors
    /// The system call and its errno: `ECONNREFUSED` (reset), `ENETUNREACH`, `EHOSTUNREACH`,
    /// `EADDRNOTAVAIL` (no more ports) …
    pub fn start(
        target: &SocketAddr,
        options: &SocketOptions,
    ) -> std::result::Result<Connecting, (&'static str, Errno)> {
        let fd = bounded_socket(target, options)?;
        match connect(fd.as_raw_fd(), &SockaddrStorage::from(*target)) {
            Ok(()) => Ok(Connecting { fd, established: true }),
            // A blocking connect returns this if SO_SNDTIMEO expires or a signal arrives; the
            // handshake continues.
            Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(Connecting { fd, established: false }),
            Err(errno) => Err(("connect", errno)),
        }
    }

    /// Waits at most `limit` for the handshake; returns true when it is complete.
    pub fn wait(&mut self, limit: Duration) -> std::result::Result<bool, (&'static str, Errno)> {
        if self.established {
            return Ok(true);
        }
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut fds, crate::wait::at_most(limit)) {
            // The connection is not made within the limit, or a signal interrupted the wait.
            Ok(0) | Err(Errno::EINTR) => return Ok(false),
            Ok(_) => {}
            Err(errno) => return Err(("poll", errno)),
        }
        match getsockopt(&self.fd, SocketError).map_err(|e| ("getsockopt(SO_ERROR)", e))? {
            0 => self.established = true,
            raw => return Err(("connect", Errno::from_raw(raw))),
        }
        Ok(true)
    }

    /// Returns the stream if the handshake is complete.
    pub fn into_stream(self) -> Option<TcpStream> {
        self.established.then(|| TcpStream::from(self.fd))
    }
}

/// State of a connection (`TCP_INFO`, `linux/tcp.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments that the kernel has retransmitted since the start of the connection
    /// (`tcpi_total_retrans`).
    pub retransmitted: u32,
    /// Smoothed round-trip time, µs (`tcpi_rtt`).
    pub rtt_us: u32,
    /// Congestion window, segments (`tcpi_snd_cwnd`).
    pub cwnd: u32,
    /// ECN is negotiated (`TCPI_OPT_ECN`).
    pub ecn: bool,
    /// Segments sent and delivered (`tcpi_delivered`), and those of them that the receiver reported
    /// as marked CE (`tcpi_delivered_ce`); `None` before Linux 4.18.
    pub delivered: Option<(u32, u32)>,
}

/// Start of `struct tcp_info`, up to `tcpi_delivered_ce` (Linux 4.18). The structure of the C
/// library ends earlier.
#[repr(C, align(8))]
struct Info([u8; Info::BYTES]);

impl Info {
    const BYTES: usize = 200;
    /// Offsets in `linux/tcp.h`, of which the kernel only extends the end.
    const OPTIONS: usize = 5;
    const RTT: usize = 68;
    const SND_CWND: usize = 80;
    const TOTAL_RETRANS: usize = 100;
    const DELIVERED: usize = 192;
    const DELIVERED_CE: usize = 196;
    /// `TCPI_OPT_ECN`.
    const ECN: u8 = 8;

    fn number(&self, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[offset..offset + 4]);
        u32::from_ne_bytes(bytes)
    }
}

/// Returns the name of the congestion control of a connection (`TCP_CONGESTION`).
///
/// # Errors
/// If the socket is not a TCP socket.
pub fn congestion_control(stream: &TcpStream) -> Result<String> {
    let name = getsockopt(stream, TcpCongestion);
    let name =
        name.map_err(|e| Error::new("getsockopt(TCP_CONGESTION)", format!("{stream:?}"), e))?;
    // The kernel pads the name with zeroes to its buffer's size.
    Ok(name.to_string_lossy().trim_end_matches('\0').to_owned())
}

/// Returns the state of a connection.
///
/// # Errors
/// If the socket is not a TCP socket.
pub fn state(stream: &TcpStream) -> Result<TcpInfo> {
    let mut length = Info::BYTES as libc::socklen_t;
    let mut info = Info([0; Info::BYTES]);
    // SAFETY: `info` is writable for the passed `length`, and the descriptor is open while `stream`
    // is borrowed. An older kernel fills less; the rest stays zero.
    let answer = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if answer != 0 {
        return Err(Error::last("getsockopt(TCP_INFO)", format!("{stream:?}")));
    }
    let is_whole = length as usize >= Info::BYTES;
    Ok(TcpInfo {
        retransmitted: info.number(Info::TOTAL_RETRANS),
        rtt_us: info.number(Info::RTT),
        cwnd: info.number(Info::SND_CWND),
        ecn: info.0[Info::OPTIONS] & Info::ECN != 0,
        delivered: is_whole
            .then(|| (info.number(Info::DELIVERED), info.number(Info::DELIVERED_CE))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};

    const LIMIT: Duration = Duration::from_millis(20);
    const NAGLE: SocketOptions =
        SocketOptions { limit: LIMIT, nodelay: false, buffer_bytes: None, dscp: None };
    const NODELAY: SocketOptions = SocketOptions { nodelay: true, ..NAGLE };

    fn loopback() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    #[test]
    fn accepting_and_reading_end_without_a_peer() {
        let listener = listen(loopback(), &NODELAY).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);

        let address = listener.local_addr().unwrap();
        let mut client = Connecting::start(&address, &NODELAY).unwrap();
        assert!(client.wait(LIMIT).unwrap());
        let mut client = client.into_stream().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert!(server.nodelay().unwrap(), "accepted sockets inherit TCP_NODELAY");
        let mut byte = [0];
        assert_eq!(client.read(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(server.read(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
        client.write_all(b"x").unwrap();
        assert_eq!(server.read(&mut byte).unwrap(), 1);
        let state = state(&client).unwrap();
        assert_eq!(state.retransmitted, 0);
        assert!(state.cwnd > 0, "{state:?}");
        assert!(matches!(state.delivered, Some((1.., 0))), "{state:?}");
        // SAFETY: tcp_info contains only integers, for which all zeroes are valid.
        let known: libc::tcp_info = unsafe { std::mem::zeroed() };
        let offset = |field: *const u32| field as usize - (&raw const known) as usize;
        assert_eq!(offset(&raw const known.tcpi_rtt), Info::RTT);
        assert_eq!(offset(&raw const known.tcpi_snd_cwnd), Info::SND_CWND);
        assert_eq!(offset(&raw const known.tcpi_total_retrans), Info::TOTAL_RETRANS);
        let file = "/proc/sys/net/ipv4/tcp_congestion_control";
        let default = std::fs::read_to_string(file).unwrap();
        assert_eq!(congestion_control(&client).unwrap(), default.trim());
    }

    #[test]
    fn buffers_are_of_the_size_asked_for_at_both_ends() {
        const BYTES: usize = 48 << 10;
        let sized = SocketOptions { buffer_bytes: Some(BYTES), ..NAGLE };
        let listener = listen(loopback(), &sized).unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = Connecting::start(&address, &sized).unwrap();
        assert!(client.wait(LIMIT).unwrap());
        let client = client.into_stream().unwrap();
        let (server, _) = listener.accept().unwrap();
        let wanted = buffers::Granted { send: BYTES, receive: BYTES };
        assert_eq!(buffers::of(&client), Ok(wanted));
        assert_eq!(buffers::of(&server), Ok(wanted), "accepted sockets inherit the buffers");
    }

    #[test]
    fn an_address_is_free_again_while_a_copy_of_the_listener_lives() {
        let listener = listen(loopback(), &NAGLE).unwrap();
        let address = listener.local_addr().unwrap();
        let _copy = listener.try_clone().unwrap();
        assert_eq!(listen(address, &NAGLE).unwrap_err().errno, Errno::EADDRINUSE);
        stop_listening(&listener);
        listen(address, &NAGLE).unwrap();
    }

    #[test]
    fn a_closed_port_is_refused() {
        let address = listen(loopback(), &NAGLE).unwrap().local_addr().unwrap();
        let (operation, errno) = Connecting::start(&address, &NAGLE).unwrap_err();
        assert_eq!((operation, errno), ("connect", Errno::ECONNREFUSED));
    }

    #[test]
    fn an_address_of_another_machine_cannot_be_bound() {
        let error = listen("192.0.2.1:1".parse().unwrap(), &NAGLE).unwrap_err();
        assert_eq!(error.errno, Errno::EADDRNOTAVAIL);
        assert!(error.to_string().contains("192.0.2.1:1"), "{error}");
    }
}
