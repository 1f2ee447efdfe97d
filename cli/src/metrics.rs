//! Counters for Prometheus, by HTTP on a Unix socket or an address.
//!
//! One request a connection; who is slow is hung up on, so that nobody waits long.
//! There is no authentication: listen where only those can connect who may know.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::Context;

/// How long a client may take.
const LIMIT: Duration = Duration::from_secs(1);
/// Longest request in bytes.
const REQUEST: usize = 4096;

/// Where to listen: `unix:PATH` or `ADDRESS:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Place::Unix(path.into())),
            _ => text.parse().map(Place::Tcp).map_err(|_| {
                format!("{text:?}: wanted unix:PATH or ADDRESS:PORT, as 127.0.0.1:9472")
            }),
        }
    }
}

/// A socket that is asked; a Unix socket's file goes with it.
#[derive(Debug)]
pub enum Metrics {
    /// A Unix socket.
    Unix(UnixListener, PathBuf),
    /// TCP.
    Tcp(TcpListener),
}

impl Metrics {
    /// Listens. The file of a Unix socket on which nobody listens is replaced.
    ///
    /// # Errors
    /// When the place is taken or cannot be had.
    pub fn listen(place: &Place) -> anyhow::Result<Metrics> {
        match place {
            Place::Unix(path) => {
                let refused = |e: std::io::Error| e.kind() == ErrorKind::ConnectionRefused;
                if UnixStream::connect(path).is_err_and(refused) {
                    // Left by a process that was killed.
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path)
                    .with_context(|| format!("listen at unix:{}", path.display()))?;
                listener.set_nonblocking(true)?;
                Ok(Metrics::Unix(listener, path.clone()))
            }
            Place::Tcp(address) => {
                let listener =
                    TcpListener::bind(address).with_context(|| format!("listen at {address}"))?;
                listener.set_nonblocking(true)?;
                Ok(Metrics::Tcp(listener))
            }
        }
    }

    /// Becomes readable when somebody asks.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Metrics::Unix(listener, _) => listener.as_fd(),
            Metrics::Tcp(listener) => listener.as_fd(),
        }
    }

    /// Answers one who is waiting.
    pub fn answer(&self, text: impl Fn() -> String) {
        // Who is gone or slow loses the answer, nobody else anything.
        let _ = match self {
            Metrics::Unix(listener, _) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(LIMIT))?;
                stream.set_write_timeout(Some(LIMIT))?;
                reply(stream, text)
            }),
            Metrics::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(LIMIT))?;
                stream.set_write_timeout(Some(LIMIT))?;
                reply(stream, text)
            }),
        };
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Metrics::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn reply(mut stream: impl Read + Write, text: impl Fn() -> String) -> std::io::Result<()> {
    let (mut request, mut length, start) = ([0; REQUEST], 0, Instant::now());
    while !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        let got = stream.read(&mut request[length..])?;
        // Its end, its length, or a byte a second.
        if got == 0 || start.elapsed() > LIMIT {
            return Ok(());
        }
        length += got;
    }
    let (status, body) = match request[..length].starts_with(b"GET /metrics ") {
        true => ("200 OK", text()),
        false => ("404 Not Found", "/metrics is what there is\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!("unix:/run/x".parse(), Ok(Place::Unix("/run/x".into())));
        let address = "[::1]:9472".parse().unwrap();
        assert_eq!("[::1]:9472".parse(), Ok(Place::Tcp(address)));
        assert!("unix:".parse::<Place>().is_err() && "9472".parse::<Place>().is_err());
    }

    #[test]
    fn who_asks_for_anything_else_or_nothing_is_answered_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        let metrics = Metrics::listen(&Place::Unix(path.clone())).unwrap();
        assert!(Metrics::listen(&Place::Unix(path.clone())).is_err(), "the place is taken");
        // Who looked whether it is has hung up.
        metrics.answer(|| unreachable!("nobody asked"));
        for (request, wanted) in [
            (&b"GET /metrics HTTP/1.1\r\n\r\n"[..], "HTTP/1.1 200 OK\r\n"),
            (b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"),
            (b"GET /metrics", ""),
            (&[0xff; 2 * REQUEST], ""),
        ] {
            let mut client = UnixStream::connect(&path).unwrap();
            client.set_read_timeout(Some(20 * LIMIT)).unwrap();
            let _ = client.write_all(request);
            client.shutdown(std::net::Shutdown::Write).unwrap();
            metrics.answer(|| "a 1\n".to_owned());
            let mut answer = Vec::new();
            match client.read_to_end(&mut answer) {
                // Hung up on with some of the request unread.
                Err(e) if e.kind() != ErrorKind::ConnectionReset => panic!("{e}"),
                _ => {}
            }
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with(wanted) && (wanted.is_empty() == answer.is_empty()));
        }
        drop(metrics);
        assert!(!path.exists());
    }
}
