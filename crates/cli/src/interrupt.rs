//! A flag for Ctrl-C and SIGTERM that long operations check.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Returns a flag that the first SIGINT or SIGTERM sets. The second one ends the process at once;
/// the kernel then removes its resources.
///
/// # Errors
/// If handlers cannot be installed.
pub fn flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Order matters: the conditional shutdown must see the flag before this signal sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .context("install signal handlers")?;
    }
    Ok(stop)
}

/// Returns a flag that SIGINT or SIGTERM sets, any number of times. For processes that must restore
/// something themselves, such as the terminal.
///
/// # Errors
/// If handlers cannot be installed.
pub fn flag_that_waits() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, stop.clone());
        registered.context("install signal handlers")?;
    }
    Ok(stop)
}
