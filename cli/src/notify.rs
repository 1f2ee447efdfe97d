//! Telling the service manager, where there is one: sd_notify(3).

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::Context;

/// Sends a state (`READY=1`, `STOPPING=1`) to `NOTIFY_SOCKET`, if it is set.
///
/// # Errors
/// When it is set and cannot be sent to.
pub fn notify(state: &str) -> anyhow::Result<()> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let send = || {
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)
    };
    send().with_context(|| format!("send {state} to NOTIFY_SOCKET={}", path.to_string_lossy()))?;
    Ok(())
}
