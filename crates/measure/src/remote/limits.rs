//! Limits of a server for its clients' requests.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use load::{Load, MAX_FLOWS};

/// Limits of a server for its clients' requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Concurrent sessions. Only one of them can run a load.
    pub sessions: u32,
    /// Flows of a load; each takes a thread and a socket.
    pub flows: u32,
    /// Warm-up plus measured interval of a load, seconds.
    pub load_s: u32,
    /// Total socket buffers of a load's flows, bytes.
    pub buffer_bytes: u64,
}

impl Limits {
    /// 8 sessions, 64 flows, 60 s, 1 GiB.
    pub const DEFAULT: Limits =
        Limits { sessions: 8, flows: 64, load_s: 60, buffer_bytes: 1 << 30 };

    /// Maximum value of each limit.
    pub const MOST: Limits =
        Limits { sessions: 1024, flows: MAX_FLOWS, load_s: 7200, buffer_bytes: 1 << 36 };

    /// Checks a load against the limits.
    ///
    /// # Errors
    /// Requested and allowed value, as text.
    pub fn check(&self, load: &Load) -> Result<(), String> {
        // Each flow takes a thread and a socket.
        let flows = load.all_flows();
        if flows > self.flows {
            return Err(format!(
                "{flows} flows: the server allows {} (measure serve --max-flows {flows})",
                self.flows
            ));
        }
        let length = load.warmup.saturating_add(load.duration);
        // A load occupies the server for all other clients.
        if length > Duration::from_secs(self.load_s.into()) {
            return Err(format!(
                "warm-up and duration of {:.1} s: the server allows {} s (measure serve \
                 --max-seconds)",
                length.as_secs_f64(),
                self.load_s
            ));
        }
        // Each socket has a buffer per direction.
        let buffers = u64::from(load.socket_buffer_bytes.unwrap_or(0)) * 2 * u64::from(flows);
        // Socket buffers are the kernel's memory, which no limit of the process covers.
        if buffers > self.buffer_bytes {
            return Err(format!(
                "socket buffers of {buffers} bytes in total: the server allows {}",
                self.buffer_bytes
            ));
        }
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use load::Workload;

    #[test]
    fn each_limit_refuses_what_is_beyond_it_by_name() {
        let load = Load::new(Workload::TcpRr);
        assert_eq!(Limits::DEFAULT.check(&load), Ok(()));
        for (load, word) in [
            (Load { flows: 65, ..load.clone() }, "--max-flows 65)"),
            (Load { flows: 64, beside: Some(results::Beside::Both), ..load.clone() }, "66 flows"),
            (Load { duration: Duration::from_secs(60), ..load.clone() }, "60.1 s"),
            (Load { duration: Duration::MAX, ..load.clone() }, "allows 60 s"),
            (Load { flows: 2, socket_buffer_bytes: Some(1 << 30), ..load }, "buffers"),
        ] {
            let refused = Limits::DEFAULT.check(&load).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
