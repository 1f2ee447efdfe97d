//! Counters for Prometheus, by HTTP on a Unix socket or an address.
//!
//! One request a connection; who is slow is hung up on ([`crate::serving`]).
//! There is no authentication: listen where only those can connect who may know.
//! The file of a Unix socket stays when the program ends, which may not remove files by
//! then; the next one replaces it.

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

/// Longest request in bytes.
const REQUEST: usize = 4096;

/// Where to listen: `unix:PATH` or `ADDRESS:PORT`.
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
            _ => text.parse().map(ListenAddress::Tcp).map_err(|_| {
                format!("{text:?}: wanted unix:PATH or ADDRESS:PORT, as 127.0.0.1:9472")
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

/// Listens. The file of a Unix socket on which nobody listens is replaced.
///
/// # Errors
/// When the place is taken or cannot be had.
pub fn listen(place: &ListenAddress) -> anyhow::Result<Listener> {
    match place {
        ListenAddress::Unix(path) => {
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

/// Whether a socket is there that nobody listens at. Does not wait for one who does.
fn is_left_behind(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let refused = || {
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
    };
    is_socket && refused() == Err(Errno::ECONNREFUSED)
}

/// Binds an address that another process of this user may have, too; nobody connects to it
/// before [`Bound::listen`]. For one that takes over from another, before it may not.
///
/// # Errors
/// When the address is taken by one that does not share it, or cannot be had.
pub fn bind_beside(address: &SocketAddr) -> anyhow::Result<Bound> {
    let bind = || {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, ReuseAddr, &true)?;
        setsockopt(&socket, ReusePort, &true)?;
        nix::sys::socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(*address))?;
        nix::Result::Ok(socket)
    };
    let socket = bind().with_context(|| {
        format!("listen at {address} (what runs there shares it only when started so, too)")
    })?;
    Ok(Bound(socket))
}

/// An address that is bound, but not listened at.
#[derive(Debug)]
pub struct Bound(OwnedFd);

impl Bound {
    /// Listens at it.
    ///
    /// # Errors
    /// When another process listens at it that does not share it.
    pub fn listen(self) -> anyhow::Result<Listener> {
        nix::sys::socket::listen(&self.0, Backlog::new(128)?).context("listen for metrics")?;
        Ok(Listener::Tcp(self.0.into()))
    }
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Status line, such as `200 OK`.
    pub status: &'static str,
    /// Answer without its headers.
    pub body: String,
}

impl Page {
    /// One that is there.
    pub fn ok(body: impl Into<String>) -> Page {
        Page { status: "200 OK", body: body.into() }
    }

    /// One that says that something is not as it should be.
    pub fn unavailable(body: impl Into<String>) -> Page {
        Page { status: "503 Service Unavailable", body: body.into() }
    }
}

/// Answers `/metrics` with what `text` gives.
pub fn door(listener: Listener, text: impl Fn() -> String + Send + 'static) -> Door {
    pages(listener, "/metrics", move |path| (path == "/metrics").then(|| Page::ok(text())))
}

/// A program that runs for long, as those see it who look after it.
pub trait Service {
    /// Its counters; nothing to tell while it starts.
    fn metrics(&self) -> Page;
    /// Whether it goes on; while it starts, it does.
    fn healthz(&self) -> Page;
    /// Whether it does its work.
    fn readyz(&self) -> Page;
}

/// Answers `/metrics`, `/healthz` and `/readyz`, by a thread of its own: nothing that a scraper
/// does holds up anything else.
///
/// # Errors
/// When descriptors or threads have run out.
pub fn look_after(
    listener: Listener,
    service: impl Service + Send + 'static,
) -> anyhow::Result<Serving> {
    let page = move |path: &str| {
        Some(match path {
            "/metrics" => service.metrics(),
            "/healthz" => service.healthz(),
            "/readyz" => service.readyz(),
            _ => return None,
        })
    };
    Serving::start(vec![pages(listener, "/metrics, /healthz, /readyz", page)])
}

/// Answers a GET for a path, without what follows `?`; `there` names what there is.
fn pages(
    listener: Listener,
    there: &'static str,
    mut page: impl FnMut(&str) -> Option<Page> + Send + 'static,
) -> Door {
    let is_whole = |bytes: &[u8]| bytes.windows(4).any(|end| end == b"\r\n\r\n");
    Door::open_to_all(listener, REQUEST, is_whole, move |request| {
        let missing =
            || Page { status: "404 Not Found", body: format!("{there} is what there is\n") };
        let Page { status, body } = path_of(request).and_then(&mut page).unwrap_or_else(missing);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        Some(Reply::bytes((head + &body).into_bytes()))
    })
}

/// The path of a GET (RFC 9112, 3).
fn path_of(request: &[u8]) -> Option<&str> {
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
    fn who_asks_for_anything_else_or_nothing_is_answered_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        let place = ListenAddress::Unix(path.clone());
        // A file of a socket that nobody has any more.
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
                // Hung up on with some of the request unread.
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
