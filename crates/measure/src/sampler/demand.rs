//! Service demand: CPU time per unit of work.

use load::Workload;
use results::{CpuSeconds, DemandUnit};

/// Returns the CPU time per unit of work: user, system, softirq and interrupt time of all CPUs,
/// minus what the machine uses when idle. The unit is the workload's
/// [`service_demand_unit`](Workload::service_demand_unit): µs/KiB of payload for TCP streams, µs
/// per datagram, transaction or connection otherwise.
///
/// `idle_load` is the busy share of all `cpus` before the run, 0..1; `seconds` the wall time of
/// `cpu`. Never negative: 0 if the machine was calmer than before the run. `None` if no work was
/// done.
pub fn service_demand(
    cpu: &CpuSeconds,
    idle_load: f64,
    seconds: f64,
    cpus: usize,
    workload: Workload,
    units: u64,
    payload_bytes: u64,
) -> Option<f64> {
    let work = match workload.service_demand_unit() {
        DemandUnit::PerKib => payload_bytes as f64 / 1024.0,
        _ => units as f64,
    };
    // Without work there is no cost per unit.
    if work <= 0.0 {
        return None;
    }
    let busy = cpu.user + cpu.system + cpu.softirq + cpu.irq;
    let idle = idle_load * seconds * cpus as f64;
    Some((busy - idle).max(0.0) * 1e6 / work)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: CpuSeconds =
        CpuSeconds { user: 0.1, system: 0.5, softirq: 0.3, irq: 0.1, steal: 9.0, idle: 9.0 };

    #[test]
    fn work_is_counted_in_the_workloads_unit() {
        let demand = |workload| service_demand(&CPU, 0.0, 1.0, 2, workload, 1000, 2_048_000);
        // 1 s of CPU over 2000 KiB, and over 1000 units. Steal and idle time do not count.
        assert!((demand(Workload::TcpStream).unwrap() - 500.0).abs() < 1e-9);
        for workload in [Workload::UdpStream, Workload::TcpRr, Workload::UdpRr, Workload::TcpCrr] {
            assert!((demand(workload).unwrap() - 1000.0).abs() < 1e-9, "{workload}");
        }
    }

    #[test]
    fn idle_load_of_all_cpus_is_subtracted() {
        let demand = |idle| service_demand(&CPU, idle, 2.0, 4, Workload::TcpRr, 1_000_000, 0);
        // 5% of 4 CPUs over 2 s are 0.4 s.
        assert!((demand(0.05).unwrap() - 0.6).abs() < 1e-9);
        assert_eq!(demand(0.5), Some(0.0));
    }

    #[test]
    fn no_work_has_no_demand() {
        assert_eq!(service_demand(&CPU, 0.0, 1.0, 2, Workload::TcpRr, 0, 5), None);
        assert_eq!(service_demand(&CPU, 0.0, 1.0, 2, Workload::TcpStream, 5, 0), None);
    }
}
