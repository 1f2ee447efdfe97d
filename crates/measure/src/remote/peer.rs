//! Combines the counters of the server's end of a path with those of the client's.

use super::Remote;
use super::message::Observed as Seen;
use crate::observed::Observed;
use crate::sampler::{self, Attributed, MachineSample};
use load::{Measured, Workload};

/// The server's machine over one sample, if it is another than the client's.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerSample {
    /// CPU time and softirq counters of the server's machine.
    pub machine: MachineSample,
}

impl Remote {
    /// Adds the server's counters to those of this end. Returns the sample of its machine if that
    /// is another one; otherwise this end has already counted everything per machine.
    pub(crate) fn join(
        &self,
        seen: Seen,
        observed: &mut Observed,
        here: &mut MachineSample,
    ) -> Option<PeerSample> {
        let [_, device] = self.devices();
        let devices = [(device.device.clone(), seen.device)].into();
        observed.devices.insert(Remote::HOST.to_owned(), devices);
        // In the same namespace, this end has already read the counters.
        if !self.is_same_netns() {
            let mut namespace = seen.namespace;
            Remote::HOST.clone_into(&mut namespace.label);
            observed.namespaces.push(namespace);
            let drops = seen.drops.into_iter();
            observed.drops.extend(drops.map(|dropped| (Remote::HOST.to_owned(), dropped)));
        }
        (!self.is_same_machine()).then(|| {
            here.softnet_dropped =
                here.softnet_dropped.saturating_add(seen.machine.softnet_dropped);
            here.softnet_squeezed =
                here.softnet_squeezed.saturating_add(seen.machine.softnet_squeezed);
            PeerSample { machine: seen.machine }
        })
    }
}

/// Work that CPU time is related to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    workload: Workload,
    /// Units of the measured interval; for `udp_stream` all received datagrams.
    units: u64,
    payload_bytes: u64,
    /// Length of the measured interval.
    seconds: f64,
}

impl Work {
    /// Returns the work of a load.
    pub(crate) fn of(measured: &Measured) -> Work {
        let Measured { workload, units, payload_bytes, seconds, .. } = *measured;
        let units = match measured.datagrams {
            Some(datagrams) if workload == Workload::UdpStream => datagrams.received,
            _ => units,
        };
        Work { workload, units, payload_bytes, seconds }
    }
}

/// Returns the CPU time of the load on both machines per unit of work; `Ok(None)` if no work was
/// done.
///
/// Over a network, CPU clocks are read somewhat before and after the measured interval. If the load
/// goes on meanwhile, each end's CPU time is scaled by the ratio of the two durations.
/// `udp_stream` is idle at both readings, so all of its CPU time counts, over all of its
/// datagrams.
///
/// # Errors
/// The reason why the load's part of the CPU time is unknown.
pub(crate) fn service_demand(
    here: &MachineSample,
    peer: Option<&PeerSample>,
    work: &Work,
) -> Result<Option<f64>, String> {
    let whole = work.workload == Workload::UdpStream;
    let of = |machine: &MachineSample| {
        let cpu = match &machine.attributed {
            Attributed::Load(seconds) => *seconds,
            // A sum with an unknown part is unknown.
            Attributed::Unknown(reason) => return Err(reason.clone()),
        };
        let share = if whole { 1.0 } else { work.seconds / machine.seconds };
        let Work { workload, units, payload_bytes, .. } = *work;
        let demand = sampler::service_demand(cpu * share, workload, units, payload_bytes);
        Ok(demand.filter(|demand| demand.is_finite()))
    };
    let own = of(here)?;
    // Both ends are on this machine: its CPU time has both.
    let Some(peer) = peer else { return Ok(own) };
    let there = of(&peer.machine).map_err(|reason| format!("{}: {reason}", Remote::HOST))?;
    Ok(own.zip(there).map(|(own, there)| own + there))
}

#[cfg(test)]
mod tests {
    use super::*;
    use results::CpuSeconds;

    fn machine(load: f64, seconds: f64) -> MachineSample {
        MachineSample {
            cpu: CpuSeconds::default(),
            attributed: Attributed::Load(load),
            seconds,
            cpus: 2,
            softnet_processed: 0,
            softnet_dropped: 0,
            softnet_squeezed: 0,
            disturbance: sampler::Disturbance::default(),
            cpus_changed: Vec::new(),
        }
    }

    fn work(workload: Workload, units: u64) -> Work {
        Work { workload, units, payload_bytes: 0, seconds: 1.0 }
    }

    #[test]
    fn both_ends_cpu_counts_each_in_proportion_to_its_own_interval() {
        // 0.5 s here; at the peer 0.25 s per second, over two seconds; 1000 units.
        let peer = PeerSample { machine: machine(0.5, 2.0) };
        let demand = |peer, workload, units| {
            service_demand(&machine(0.5, 1.0), peer, &work(workload, units)).unwrap().unwrap()
        };
        assert!((demand(None, Workload::TcpRr, 1000) - 500.0).abs() < 1e-9);
        assert!((demand(Some(&peer), Workload::TcpRr, 1000) - 750.0).abs() < 1e-9);
        // All CPU time, over all 2000 datagrams.
        assert!((demand(Some(&peer), Workload::UdpStream, 2000) - 500.0).abs() < 1e-9);
        // No work has no cost.
        let idle = service_demand(&machine(0.5, 1.0), None, &work(Workload::TcpRr, 0));
        assert_eq!(idle, Ok(None));
    }

    #[test]
    fn a_machine_that_cannot_attribute_its_time_is_named() {
        let older = MachineSample { attributed: Attributed::default(), ..machine(0.0, 1.0) };
        let peer = PeerSample { machine: older };
        let reason =
            service_demand(&machine(0.5, 1.0), Some(&peer), &work(Workload::TcpRr, 9)).unwrap_err();
        assert!(
            reason.starts_with(&format!("{}: its version of overlane is older", Remote::HOST)),
            "{reason}"
        );
    }
}
