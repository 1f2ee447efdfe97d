//! Memory of fragments that wait for reassembly in a network namespace: usage and limit.
//!
//! Source: `net/ipv4/proc.c` (`sockstat_seq_show`), `net/ipv6/proc.c`, `net/ipv4/inet_fragment.c`.
//! If more than `ipfrag_high_thresh` bytes are in use, no new packet is accepted for reassembly
//! until others are complete or time out (`ipfrag_time`).

use serde::{Deserialize, Serialize};

use crate::proc::read_value;

/// Memory of one IP version, bytes in the kernel (headers and bookkeeping included).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Used by waiting fragments.
    pub used: u64,
    /// Limit; 0: reassembly is off.
    pub limit: u64,
    /// Incomplete packets.
    pub packets: u64,
}

impl Memory {
    /// Returns the used share of the limit; 1 if the limit is 0.
    pub fn share(&self) -> f64 {
        // Reassembly is off.
        if self.limit == 0 { 1.0 } else { self.used as f64 / self.limit as f64 }
    }
}

/// Memory of both IP versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reassembly {
    /// Memory of IPv4.
    pub v4: Memory,
    /// IPv6; `None` if the kernel has no IPv6.
    pub v6: Option<Memory>,
    /// Timeout of an incomplete packet (IPv4), seconds.
    pub seconds: u64,
}

impl Reassembly {
    /// Reads the values of the calling thread's namespace.
    ///
    /// # Errors
    /// A file cannot be read or has another format than documented, as text.
    pub fn read() -> Result<Reassembly, String> {
        let text =
            |path: &str| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let value = |path: &str| -> Result<u64, String> {
            let text = read_value(path).map_err(|error| error.to_string())?;
            text.parse().map_err(|_| format!("{path}: expected a number, got {text:?}"))
        };
        let v4 = memory(
            &text("/proc/thread-self/net/sockstat")?,
            "FRAG:",
            value("/proc/sys/net/ipv4/ipfrag_high_thresh")?,
        )?;
        let v6 = match text("/proc/thread-self/net/sockstat6") {
            Ok(text) => {
                Some(memory(&text, "FRAG6:", value("/proc/sys/net/ipv6/ip6frag_high_thresh")?)?)
            }
            // Missing if the kernel has no IPv6.
            Err(_) => None,
        };
        Ok(Reassembly { v4, v6, seconds: value("/proc/sys/net/ipv4/ipfrag_time")? })
    }

    /// Returns the larger share of both versions.
    pub fn share(&self) -> f64 {
        self.v6.map_or(0.0, |v6| v6.share()).max(self.v4.share())
    }
}

/// Parses `FRAG: inuse 3 memory 4096`.
fn memory(text: &str, name: &str, limit: u64) -> Result<Memory, String> {
    let expected = || format!("sockstat: expected a line {name} inuse N memory N");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(expected)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let [.., "inuse", packets, "memory", used] = words[..] else { return Err(expected()) };
    let number = |text: &str| text.parse().map_err(|_| expected());
    Ok(Memory { used: number(used)?, limit, packets: number(packets)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let text = "sockets: used 3\nUDP: inuse 0 mem 0\nFRAG: inuse 2 memory 4608\n";
        let read = memory(text, "FRAG:", 9216).unwrap();
        assert_eq!(read, Memory { used: 4608, limit: 9216, packets: 2 });
        assert!((read.share() - 0.5).abs() < 1e-9);
        for text in ["", "FRAG: inuse 2", "FRAG: inuse two memory 4", "FRAG: memory 4 inuse 2"] {
            assert!(memory(text, "FRAG:", 1).unwrap_err().contains("FRAG:"), "{text}");
        }
    }

    #[test]
    fn this_kernels_files_are_read() {
        let read = Reassembly::read().unwrap();
        assert!(read.v4.limit > 0 && read.seconds > 0, "{read:?}");
    }
}
