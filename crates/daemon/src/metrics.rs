//! Prometheus metrics over HTTP, on a Unix socket or an address.
//!
//! One request per connection; slow clients are disconnected ([`crate::serving`]). There is no
//! authentication, so listen only where all clients may read the metrics. The file of a Unix socket
//! stays when the program exits, because confinement forbids removing it; the next process replaces
//! it.

use std::fmt::{self, Display};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{ReuseAddr, ReusePort};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, UnixAddr, connect, setsockopt,
    socket,
};

use crate::serving::{Door, Listener, Reply, Serving};

/// Maximum length of a request, in bytes.
const REQUEST: usize = 4096;

/// Listen address: `unix:PATH` or `ADDRESS:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// `unix:PATH`.
    Unix(PathBuf),
    /// An address and port of this host.
    Tcp(SocketAddr),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ListenAddress, String> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(ListenAddress::Unix(path.into())),
            // clients.
            _ => text.parse().map(ListenAddress::Tcp).map_err(|_| {
                format!("{text:?}: expected unix:PATH or ADDRESS:PORT, such as 127.0.0.1:9472")
            }),
        }
    }
}

impl Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Unix(path) => write!(out, "unix:{}", path.display()),
            ListenAddress::Tcp(address) => write!(out, "{address}"),
        }
    }
}

/// Listens on an address. Replaces the file of a Unix socket without a listener.
///
/// # Errors
/// If the address is in use or cannot be bound.
pub fn listen(place: &ListenAddress) -> anyhow::Result<Listener> {
    match place {
        ListenAddress::Unix(path) => {
            // A confined process cannot remove its socket file at exit, so the next one replaces
            // it.
            if is_left_behind(path) {
                let _ = std::fs::remove_file(path);
            }
            let listener = UnixListener::bind(path)
                .with_context(|| format!("listen at unix:{}", path.display()))?;
            Ok(Listener::Unix(listener))
        }
        ListenAddress::Tcp(address) => {
            let listener =
                TcpListener::bind(address).with_context(|| format!("listen at {address}"))?;
            Ok(Listener::Tcp(listener))
        }
    }
}

/// Returns whether the path is a socket without a listener. Does not block.
fn is_left_behind(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let refused = || {
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
    };
    // Any other error, such as EACCES, may hide a running listener: keep the file.
    is_socket && refused() == Err(Errno::ECONNREFUSED)
}

/// Binds an address that another process of this user may also use. Clients cannot connect before
/// [`Bound::listen`]. A successor calls it before confinement, which forbids new sockets.
///
/// # Errors
/// If the address is in use by a process that does not share it, or cannot be bound.
pub fn bind_beside(address: &SocketAddr) -> anyhow::Result<Bound> {
    let bind = || {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        // REUSEADDR allows connections in TIME_WAIT, REUSEPORT the running predecessor.
        setsockopt(&socket, ReuseAddr, &true)?;
        setsockopt(&socket, ReusePort, &true)?;
        nix::sys::socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(*address))?;
        nix::Result::Ok(socket)
    };
    let socket = bind().with_context(|| {
        format!(
            "listen at {address} (the process there must have been started with --takeover, too)"
        )
    })?;
    Ok(Bound(socket))
}

/// An address that is bound, but not yet listening.
#[derive(Debug)]
pub struct Bound(OwnedFd);

impl Bound {
    /// Starts to listen.
    ///
    /// # Errors
    /// If another process listens there that does not share the address.
    pub fn listen(self) -> anyhow::Result<Listener> {
        nix::sys::socket::listen(&self.0, Backlog::new(128)?).context("listen for metrics")?;
        Ok(Listener::Tcp(self.0.into()))
    }
}

/// The HTTP response for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Status line, such as `200 OK`.
    pub status: &'static str,
    pub body: String,
}

impl Page {
    /// Returns a page with status 200.
    pub fn ok(body: impl Into<String>) -> Page {
        Page { status: "200 OK", body: body.into() }
    }

    /// Returns a page with status 503.
    pub fn unavailable(body: impl Into<String>) -> Page {
        Page { status: "503 Service Unavailable", body: body.into() }
    }
}

/// Returns a door that answers `/metrics` with the result of `text`.
pub fn door(listener: Listener, text: impl Fn() -> String + Send + 'static) -> Door {
    pages(listener, "/metrics", move |path| (path == "/metrics").then(|| Page::ok(text())))
}

/// Monitoring interface of a long-running program.
pub trait Service {
    /// The metrics; unavailable during startup.
    fn metrics(&self) -> Page;
    /// Liveness; healthy during startup.
    fn healthz(&self) -> Page;
    /// Readiness.
    fn readyz(&self) -> Page;
}

/// Serves `/metrics`, `/healthz` and `/readyz` in a separate thread, so that a scraper cannot delay
/// anything else.
///
/// # Errors
/// If no descriptors or threads are left.
pub fn look_after(
    listener: Listener,
    service: impl Service + Send + 'static,
) -> anyhow::Result<Serving> {
    let page = move |path: &str| {
        Some(match path {
            "/metrics" => service.metrics(),
            "/healthz" => service.healthz(),
            "/readyz" => service.readyz(),
            // Unknown paths get 404.
            _ => return None,
        })
    };
    Serving::start(vec![pages(listener, "/metrics, /healthz, /readyz", page)])
}

/// Answers GET requests by path, without the query. `there` lists the known paths.
fn pages(
    listener: Listener,
    there: &'static str,
    mut page: impl FnMut(&str) -> Option<Page> + Send + 'static,
) -> Door {
    let is_whole = |bytes: &[u8]| bytes.windows(4).any(|end| end == b"\r\n\r\n");
    Door::open_to_all(listener, REQUEST, is_whole, move |request| {
        let missing = || Page { status: "404 Not Found", body: format!("known paths: {there}\n") };
        let Page { status, body } = path_of(request).and_then(&mut page).unwrap_or_else(missing);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        Some(Reply::bytes((head + &body).into_bytes()))
    })
}

/// Returns the path of a GET request without its query (RFC 9112, section 3).
fn path_of(request: &[u8]) -> Option<&str> {
    // Other methods get 404 as well.
    let line = request.strip_prefix(b"GET ")?.split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(line).ok()?.split('?').next()
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn places() {
        assert_eq!("unix:/run/x".parse(), Ok(ListenAddress::Unix("/run/x".into())));
        let address = "[::1]:9472".parse().unwrap();
        assert_eq!("[::1]:9472".parse(), Ok(ListenAddress::Tcp(address)));
        assert!(
            "unix:".parse::<ListenAddress>().is_err() && "9472".parse::<ListenAddress>().is_err()
        );
    }

    #[test]
    fn other_and_empty_requests_get_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        let place = ListenAddress::Unix(path.clone());
        // A leftover socket file without a listener.
        drop(UnixListener::bind(&path).unwrap());
        let listener = listen(&place).unwrap();
        assert!(listen(&place).is_err(), "the place is taken");
        let serving = Serving::start(vec![door(listener, || "a 1\n".to_owned())]).unwrap();
        for (request, wanted) in [
            (&b"GET /metrics HTTP/1.1\r\n\r\n"[..], "HTTP/1.1 200 OK\r\n"),
            (b"GET /metrics?a=b HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"),
            (b"GET \xff HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"),
            (b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"),
            (b"GET /metrics", ""),
            (&[0xff; 2 * REQUEST], ""),
        ] {
            let mut client = UnixStream::connect(&path).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let _ = client.write_all(request);
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            match client.read_to_end(&mut answer) {
                // The server closed the connection with unread data.
                Err(e) if e.kind() != ErrorKind::ConnectionReset => panic!("{e}"),
                _ => {}
            }
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with(wanted) && (wanted.is_empty() == answer.is_empty()));
        }
        drop(serving);
        assert!(listen(&place).is_ok(), "nobody has the place");
    }
}
