//! Service demand: CPU time per unit of work.

use load::Workload;
use results::DemandUnit;

/// Returns the CPU time of a load per unit of its work. The unit is the workload's
/// [`service_demand_unit`](Workload::service_demand_unit): µs/KiB of payload for TCP streams, µs
/// per datagram, transaction or connection otherwise.
///
/// `cpu` is in seconds, over all CPUs. `None` if no work was done.
pub fn service_demand(cpu: f64, workload: Workload, units: u64, payload_bytes: u64) -> Option<f64> {
    let work = match workload.service_demand_unit() {
        DemandUnit::PerKib => payload_bytes as f64 / 1024.0,
        _ => units as f64,
    };
    // Without work there is no cost per unit.
    (work > 0.0).then(|| cpu * 1e6 / work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_in_the_workloads_unit() {
        let demand = |workload| service_demand(1.0, workload, 1000, 2_048_000);
        // 1 s of CPU over 2000 KiB, and over 1000 units.
        assert!((demand(Workload::TcpStream).unwrap() - 500.0).abs() < 1e-9);
        for workload in [Workload::UdpStream, Workload::TcpRr, Workload::UdpRr, Workload::TcpCrr] {
            assert!((demand(workload).unwrap() - 1000.0).abs() < 1e-9, "{workload}");
        }
    }

    #[test]
    fn no_work_has_no_demand() {
        assert_eq!(service_demand(1.0, Workload::TcpRr, 0, 5), None);
        assert_eq!(service_demand(1.0, Workload::TcpStream, 5, 0), None);
    }
}
