//! Machine-wide state: CPUs, softirqs, tables and settings.

use std::collections::BTreeMap;

use netstate::cpu::{CpuStat, PROC_STAT};
use netstate::interrupts::{Interrupts, PROC_INTERRUPTS};
use netstate::machine::MachineFacts;
use netstate::namespace::first;
use netstate::neighbour_table::{ARP_CACHE, NeighbourTable};
use netstate::proc::{ProcError, ProcFile, read_value};
use netstate::softnet::{PROC_SOFTNET_STAT, SoftnetStat};

use crate::host::{Machine, Pair, Reading, Scaling};

/// Settings of the machine that checks read.
pub(super) const SYSCTLS: [&str; 8] = [
    "net/core/netdev_max_backlog",
    "net/core/netdev_budget",
    "net/core/netdev_budget_usecs",
    "net/core/rps_sock_flow_entries",
    "net/core/flow_limit_cpu_bitmap",
    "net/ipv4/neigh/default/gc_thresh3",
    "net/core/rmem_default",
    "net/core/wmem_default",
];

/// Reads in the machine's first namespace, which alone has some settings and counters. If it cannot
/// be entered, reads in the caller's namespace.
fn in_the_first<T: Send>(read: impl Fn() -> T + Send + Sync) -> T {
    let there = first().and_then(|netns| netns.run(&read).ok());
    // An ordinary user cannot enter the first namespace.
    there.unwrap_or_else(read)
}

/// Counters of the machine at the first reading; [`Early::finish`] reads them again.
pub(super) struct Early {
    softnet: Result<SoftnetStat, ProcError>,
    cpu: Result<CpuStat, ProcError>,
    arp: Result<NeighbourTable, ProcError>,
    interrupts: Result<Interrupts, ProcError>,
}

impl Early {
    pub(super) fn read() -> Early {
        in_the_first(|| Early {
            softnet: softnet(),
            cpu: cpu(),
            arp: NeighbourTable::read(ARP_CACHE),
            interrupts: interrupts(),
        })
    }

    /// Takes the second reading, and reads the state without counters.
    pub(super) fn finish(self) -> Machine {
        let later = Early::read();
        let sysctls: BTreeMap<String, Reading<String>> = in_the_first(|| {
            let value = |path| Reading::from_result(read_value(format!("/proc/sys/{path}")));
            SYSCTLS.into_iter().map(|path| (path.to_owned(), value(path))).collect()
        });
        Machine {
            facts: Reading::from_result(MachineFacts::read()),
            sysctls,
            softnet: pair(self.softnet, later.softnet),
            cpu: pair(self.cpu, later.cpu),
            interrupts: pair(self.interrupts, later.interrupts),
            nodes: nodes(),
            scaling: scaling(),
            arp: pair(self.arp, later.arp),
            kernel_vhost_net: std::path::Path::new("/dev/vhost-net").exists(),
            kernel_openvswitch: std::path::Path::new("/sys/module/openvswitch").exists(),
        }
    }
}

fn softnet() -> Result<SoftnetStat, ProcError> {
    SoftnetStat::read(&ProcFile::open(PROC_SOFTNET_STAT)?)
}

fn cpu() -> Result<CpuStat, ProcError> {
    CpuStat::read(&ProcFile::open(PROC_STAT)?)
}

fn interrupts() -> Result<Interrupts, ProcError> {
    Interrupts::read(PROC_INTERRUPTS, &ProcFile::open(PROC_INTERRUPTS)?)
}

/// Returns the numbers of directory entries named `prefix` and a number.
fn numbered(directory: &str, prefix: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect()
}

fn nodes() -> BTreeMap<u32, String> {
    const NODES: &str = "/sys/devices/system/node";
    let cpus = |node: u32| read_value(format!("{NODES}/node{node}/cpulist")).ok();
    let nodes = numbered(NODES, "node").into_iter();
    nodes.filter_map(|node| Some((node, cpus(node)?))).collect()
}

fn scaling() -> Option<Scaling> {
    const POLICIES: &str = "/sys/devices/system/cpu/cpufreq";
    let mut found: Option<Scaling> = None;
    for policy in numbered(POLICIES, "policy") {
        let read = |name: &str| read_value(format!("{POLICIES}/policy{policy}/{name}")).ok();
        // The policy could not be read.
        let (Some(driver), Some(governor)) = (read("scaling_driver"), read("scaling_governor"))
        else {
            continue;
        };
        let scaling = found.get_or_insert_with(|| Scaling { driver, governors: BTreeMap::new() });
        *scaling.governors.entry(governor).or_default() += 1;
    }
    found
}

/// Combines both readings, or returns the error of one.
pub(super) fn pair<T, E: std::fmt::Display>(
    before: Result<T, E>,
    after: Result<T, E>,
) -> Reading<Pair<T>> {
    Reading::from_result(before.and_then(|before| Ok(Pair { before, after: after? })))
}
