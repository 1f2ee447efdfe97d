//! A flag for Ctrl-C, SIGTERM and SIGHUP that long operations check.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Returns the signals that end a run. SIGHUP is one of them, unless it is ignored: `nohup` keeps a
/// run alive when its terminal closes.
fn ending() -> impl Iterator<Item = i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hangup = (!is_ignored(&status, SIGHUP)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangup)
}

/// Returns whether a process ignores a signal, by `SigIgn` of its `/proc/PID/status` (proc(5)).
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Returns a flag that the first SIGINT, SIGTERM or SIGHUP sets. A SIGINT after it (Ctrl-C again) ends
/// the process at once; the kernel then removes its resources. Another SIGTERM or SIGHUP does not:
/// timeout(1) sends its signal to the process and to the group, and the results would be lost.
pub fn flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in ending() {
        // Order matters: the conditional shutdown must see the flag before this signal sets it.
        if signal == SIGINT {
            signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
                .context("install signal handlers")?;
        }
        signal_hook::flag::register(signal, stop.clone()).context("install signal handlers")?;
    }
    Ok(stop)
}

/// Returns a flag that SIGINT, SIGTERM or SIGHUP sets, any number of times. For processes that must restore
/// something themselves, such as the terminal.
pub fn flag_that_waits() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in ending() {
        let registered = signal_hook::flag::register(signal, stop.clone());
        registered.context("install signal handlers")?;
    }
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_hangup_stays_ignored() {
        let under_nohup = "Name:\tsleep\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000000\n";
        assert!(is_ignored(under_nohup, SIGHUP));
        assert!(!is_ignored(under_nohup, SIGINT));
        assert!(!is_ignored("SigIgn:\t0000000000001000\n", SIGHUP));
        assert!(!is_ignored("", SIGHUP));
    }
}
