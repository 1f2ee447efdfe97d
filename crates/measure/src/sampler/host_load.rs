//! Counters of a host's own traffic, and the detection of harm to it.

use netstate::cpu::{CpuStat, CpuTicks, PROC_STAT};
use netstate::proc::{ProcFile, read_value};
use netstate::snmp::{PROC_SNMP, Snmp};
use netstate::softnet::{PROC_SOFTNET_STAT, SoftnetStat};
use serde::{Deserialize, Serialize};

/// State of a host's own traffic: monotonic counters, and the waiting share.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLoad {
    /// Packets through the network stack.
    pub packets: f64,
    /// Packets dropped at full backlogs.
    pub drops: f64,
    /// TCP segments retransmitted in the process's namespace.
    pub retransmits: f64,
    /// Share of the last ten seconds in which some task waited for a CPU, 0..1 (PSI).
    pub waiting: f64,
    /// CPU time of the whole machine; `None` if it cannot be read.
    pub ticks: Option<CpuTicks>,
}

/// Additional retransmits per second, compared to rests, that do not count as harm.
const RETRANSMITS: f64 = 20.0;
/// Increase of the waiting share that counts as harm.
const WAITING: f64 = 0.10;

/// Returns whether a host suffered from a pulse, by its counters at the pulse's `begin` and `end`,
/// `seconds` apart. `resting` has the rates of the rest before it, `waiting` is the share before
/// the run.
pub(crate) fn suffers(
    begin: &HostLoad,
    end: &HostLoad,
    resting: &Rates,
    waiting: f64,
    seconds: f64,
) -> bool {
    let rates = Rates::between(begin, end, seconds);
    rates.drops > resting.drops * 2.0 && end.drops > begin.drops
        || rates.retransmits > resting.retransmits * 2.0 + RETRANSMITS
        || end.waiting > waiting + WAITING
}

/// Rates per second: packets, dropped packets, retransmitted TCP segments.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rates {
    pub packets: f64,
    pub drops: f64,
    pub retransmits: f64,
}

impl Rates {
    pub fn between(begin: &HostLoad, end: &HostLoad, seconds: f64) -> Rates {
        let seconds = seconds.max(1e-3);
        // A 32-bit counter that wrapped counts as unchanged.
        let rate = |end: f64, begin: f64| (end - begin).max(0.0) / seconds;
        Rates {
            packets: rate(end.packets, begin.packets),
            drops: rate(end.drops, begin.drops),
            retransmits: rate(end.retransmits, begin.retransmits),
        }
    }
}

/// Reads [`HostLoad`]. A source that this kernel lacks reads as zero.
#[derive(Debug)]
pub(crate) struct HostCounters {
    softnet: Option<ProcFile>,
    snmp: Option<ProcFile>,
    stat: Option<ProcFile>,
}

/// Time that tasks waited for a CPU (PSI).
const PRESSURE: &str = "/proc/pressure/cpu";

impl HostCounters {
    pub fn open() -> HostCounters {
        let open = |path: &str| ProcFile::open(path).ok();
        HostCounters {
            softnet: open(PROC_SOFTNET_STAT),
            snmp: open(PROC_SNMP),
            stat: open(PROC_STAT),
        }
    }

    pub fn host_load(&self) -> HostLoad {
        let softnet = self.softnet.as_ref().and_then(|file| SoftnetStat::read(file).ok());
        let cpus = softnet.iter().flat_map(|stat| stat.cpus.values());
        let packets = cpus.clone().map(|cpu| f64::from(cpu.processed)).sum();
        let drops = cpus.map(|cpu| f64::from(cpu.dropped)).sum();
        let snmp = self.snmp.as_ref().and_then(|file| Snmp::parse(&file.read().ok()?).ok());
        let retransmits = snmp.map_or(0.0, |snmp| snmp.tcp.retrans_segs as f64);
        // The kernel may lack PSI.
        let waiting = read_value(PRESSURE).ok().and_then(|text| waiting(&text)).unwrap_or(0.0);
        let stat = self.stat.as_ref().and_then(|file| CpuStat::read(file).ok());
        HostLoad { packets, drops, retransmits, waiting, ticks: stat.map(|stat| stat.total) }
    }
}

/// Parses `avg10` of the line `some`, 0..1.
fn waiting(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = some.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    percent.parse::<f64>().ok().map(|percent| percent / 100.0)
}

/// Returns the speed of a device in this process's namespace, bits/s; `None` if it reports none or
/// is in another namespace.
pub(crate) fn link_speed(device: &str) -> Option<f64> {
    let text = read_value(format!("/sys/class/net/{device}/speed")).ok()?;
    let megabits = text.trim().parse::<f64>().ok()?;
    // The driver reports -1 if the speed is unknown (`SPEED_UNKNOWN` of ethtool.h).
    (megabits > 0.0).then_some(megabits * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_retransmits_and_waiting_are_harm_and_what_was_there_before_is_not() {
        let calm = HostLoad { drops: 10.0, retransmits: 5.0, waiting: 0.2, ..HostLoad::default() };
        let resting = Rates { retransmits: 1.0, ..Rates::default() };
        let harm = |end: HostLoad| suffers(&calm, &end, &resting, 0.2, 0.1);
        assert!(!harm(calm));
        assert!(harm(HostLoad { drops: 11.0, ..calm }));
        assert!(!harm(HostLoad { retransmits: 6.0, ..calm }));
        assert!(harm(HostLoad { retransmits: 9.0, ..calm }));
        assert!(harm(HostLoad { waiting: 0.35, ..calm }));
        // A host with constant drops.
        let dropping = Rates { drops: 100.0, ..Rates::default() };
        let same = HostLoad { drops: 20.0, ..calm };
        assert!(!suffers(&calm, &same, &dropping, 0.2, 0.1));
    }

    #[test]
    fn the_pressure_file_is_read() {
        let text = "some avg10=4.91 avg60=3.30 avg300=9.14 total=6496919413\nfull avg10=0.00\n";
        assert!((waiting(text).unwrap() - 0.0491).abs() < 1e-9);
        assert_eq!(waiting(""), None);
        let load = HostCounters::open().host_load();
        assert!((0.0..=1.0).contains(&load.waiting), "{load:?}");
    }
}
