//! Notifications to the service manager: sd_notify(3).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;

use anyhow::Context;

/// The connected socket; `None` without a service manager.
static SOCKET: OnceLock<Option<UnixDatagram>> = OnceLock::new();

/// Connects to `NOTIFY_SOCKET`, if it is set. Call it before confinement, which forbids sockets.
///
/// # Errors
/// If it is set and the connection fails.
pub fn connect() -> anyhow::Result<()> {
    if SOCKET.get().is_some() {
        return Ok(());
    }
    let socket = match std::env::var_os("NOTIFY_SOCKET") {
        None => None,
        Some(path) => {
            let connect = || {
                let address = match path.as_bytes().strip_prefix(b"@") {
                    Some(name) => SocketAddr::from_abstract_name(name)?,
                    None => SocketAddr::from_pathname(&path)?,
                };
                let socket = UnixDatagram::unbound()?;
                socket.connect_addr(&address)?;
                std::io::Result::Ok(socket)
            };
            let failed = || format!("connect to NOTIFY_SOCKET={}", path.to_string_lossy());
            Some(connect().with_context(failed)?)
        }
    };
    let _ = SOCKET.set(socket);
    Ok(())
}

/// Sends a state (`READY=1`, `STOPPING=1`) to `NOTIFY_SOCKET`, if it is set.
///
/// # Errors
/// If it is set and sending fails.
pub fn notify(state: &str) -> anyhow::Result<()> {
    connect()?;
    // Not started by a service manager.
    let Some(Some(socket)) = SOCKET.get() else { return Ok(()) };
    socket.send(state.as_bytes()).with_context(|| format!("send {state} to NOTIFY_SOCKET"))?;
    Ok(())
}
