//! Survey of other load on the machine before a run.

use super::{Disturbance, Limits};
use results::stats::{median, percentile};

/// Result of [`Machine::survey`](super::Machine::survey).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Survey {
    /// Share of all CPUs busy, 0..1.
    pub busy: f64,
    /// Share of all CPUs in softirqs and interrupts, 0..1.
    pub softirq: f64,
    /// Disturbance during each step.
    pub steps: Vec<Disturbance>,
    /// Disturbance over all steps.
    pub whole: Disturbance,
    /// Packets through the network stack, all CPUs.
    pub packets_per_s: f64,
    /// Each online CPU.
    pub cpus: Vec<CpuBusy>,
    /// Processes outside the measurement that used CPU time, busiest first.
    pub consumers: Vec<Consumer>,
    /// Number of CPUs that a control group allows to this process.
    pub quota: Option<f64>,
}

/// Load of a CPU, as shares of its time, 0..1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuBusy {
    /// Number of the CPU, as in `/proc/stat`.
    pub cpu: usize,
    /// Share in which it was neither idle nor waiting for I/O.
    pub busy: f64,
    /// Share in softirqs, without hardware interrupts.
    pub softirq: f64,
    /// Share taken by the hypervisor.
    pub steal: f64,
}

/// A process outside the measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Consumer {
    /// Process ID in this process's PID namespace.
    pub pid: u32,
    /// Command name, as the process set it.
    pub command: String,
    /// CPU time over wall time: 1 is one CPU.
    pub share: f64,
}

impl Survey {
    /// Variation of other load between steps: half of the distance between the 10th and the 90th
    /// percentile, of all CPUs, 0..1.
    pub fn swing(&self) -> f64 {
        let shares: Vec<f64> =
            self.steps.iter().map(|step| step.other_share + step.steal_share).collect();
        let at = |q| percentile(&shares, q).unwrap_or(0.0);
        (at(0.9) - at(0.1)) / 2.0
    }

    /// Whether that variation exceeds the allowed difference between samples.
    pub fn comes_and_goes(&self) -> bool {
        self.swing() >= Limits::DEFAULT.other_share
    }

    /// Share of all CPUs that other programs and the hypervisor take, 0..1.
    pub fn taken(&self) -> f64 {
        let shares: Vec<f64> =
            self.steps.iter().map(|step| step.other_share + step.steal_share).collect();
        // Tick errors can push the sum beyond the bounds.
        median(&shares).unwrap_or(0.0).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_load_swings_little_and_bursts_much() {
        let of = |shares: [f64; 5]| Survey {
            steps: shares
                .map(|other_share| Disturbance { other_share, ..Disturbance::default() })
                .to_vec(),
            ..Survey::default()
        };
        let steady = of([0.5, 0.51, 0.5, 0.49, 0.5]);
        assert!(steady.swing() < 0.02 && (steady.taken() - 0.5).abs() < 1e-9);
        assert!(of([0.0, 0.9, 0.0, 0.9, 0.9]).swing() > 0.4);
        assert_eq!((Survey::default().swing(), Survey::default().taken()), (0.0, 0.0));
    }
}
