//! Ctrl-C and SIGTERM: a flag that long work looks at.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Sets the flag on the first SIGINT or SIGTERM; the second one ends the
/// process at once (what it holds, the kernel removes).
///
/// # Errors
/// When handlers cannot be installed.
pub fn flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Order matters: the conditional shutdown must see the flag as the
        // earlier signal left it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .context("install signal handlers")?;
    }
    Ok(stop)
}

/// Sets the flag on SIGINT or SIGTERM, however often: what the process holds, it must give back
/// itself, like a terminal.
///
/// # Errors
/// When handlers cannot be installed.
pub fn flag_that_waits() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, stop.clone());
        registered.context("install signal handlers")?;
    }
    Ok(stop)
}
