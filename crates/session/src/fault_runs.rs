//! `lab run --faults`: injects each fault of each mode into fresh testbeds, after the blocks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::fault::INTERVAL;
use lab::{Fault, Mode, Params};
use results::{FaultCost, FaultRecord, FaultTrial};

use crate::progress::Progress;
use crate::testbeds::{BuildOptions, Built, profile, stand};
use crate::usage::usage;

/// Checks that at least one mode supports a fault.
///
/// # Errors
/// A usage error with the modes that do.
pub fn check(trials: u32, modes: &[&'static dyn Mode]) -> anyhow::Result<()> {
    // Modes without faults are measured as usual if another mode has some.
    if trials == 0 || modes.iter().any(|mode| !mode.faults().is_empty()) {
        return Ok(());
    }
    Err(usage("--faults", format!("none of the modes supports a fault; {}", known())))
}

/// Returns the modes that support a fault, for an error message.
pub fn known() -> String {
    let known = lab::modes().iter().filter(|mode| !mode.faults().is_empty());
    let known: Vec<&str> = known.map(|mode| mode.name()).collect();
    format!("those that do: {}", known.join(", "))
}

/// The faults of a run's modes, and their trials so far.
pub struct FaultRuns {
    runs: Vec<FaultRun>,
    asked: u32,
}

/// A fault of a mode, and its trials.
struct FaultRun {
    mode: &'static dyn Mode,
    params: Params,
    fault: &'static Fault,
    /// Estimated duration of a trial.
    takes: Duration,
    trials: Vec<FaultTrial>,
}

impl FaultRuns {
    /// Collects the faults of the built modes, for `asked` trials each. Their testbeds have no
    /// varied settings.
    pub fn of(built: &[Built], asked: u32) -> FaultRuns {
        // Entries with a setting are additional testbeds of the same mode.
        let found = built.iter().filter(|built| built.setting.is_none());
        FaultRuns::new(found.map(|built| (built.mode, built.params, built.took)), asked)
    }

    /// Collects the faults of modes with the given build times.
    fn new(
        modes: impl Iterator<Item = (&'static dyn Mode, Params, Duration)>,
        asked: u32,
    ) -> FaultRuns {
        let runs = modes.flat_map(|(mode, params, builds)| {
            mode.faults().iter().map(move |fault| {
                let takes = builds + Duration::from_secs(fault.seconds.into());
                FaultRun { mode, params, fault, takes, trials: Vec::new() }
            })
        });
        FaultRuns { runs: if asked == 0 { Vec::new() } else { runs.collect() }, asked }
    }

    /// Estimates the duration of all trials.
    pub fn expected(&self) -> Duration {
        self.runs.iter().map(|run| run.takes).sum::<Duration>() * self.asked
    }

    /// Runs all trials until `stop` is set. An interrupted trial is discarded.
    pub fn inject(
        &mut self,
        wanted: &BuildOptions<'_>,
        progress: &mut Progress,
        stop: &AtomicBool,
    ) {
        progress.followed_by(Duration::ZERO);
        progress.measure(self.expected());
        self.rounds(wanted, progress, stop);
        progress.finish();
    }

    /// Runs the trials in rounds of one per fault, so that drift of the machine affects all faults
    /// alike.
    fn rounds(&mut self, wanted: &BuildOptions<'_>, progress: &Progress, stop: &AtomicBool) {
        // The trials so far are kept; a trial cut short shows nothing.
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let all = self.runs.len() as u64 * u64::from(self.asked);
        let mut done = 0;
        for trial in 1..=self.asked {
            for run in &mut self.runs {
                let (mode, fault) = (run.mode.name(), run.fault.name);
                progress.prepare(format!("{mode}, fault {fault}, trial {trial} of {}", self.asked));
                let tried = run.once(wanted);
                // Discard the trial: the interrupt may have cut its waits short.
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                run.trials.push(tried);
                done += 1;
                progress.sampled(done, all);
            }
        }
    }

    /// Returns whether all trials are done.
    pub fn is_whole(&self) -> bool {
        self.runs.iter().all(|run| run.trials.len() == self.asked as usize)
    }

    /// Converts the trials for the results file.
    pub fn records(self) -> Vec<FaultRecord> {
        let record = |run: FaultRun| FaultRecord {
            mode: run.mode.name().to_owned(),
            offload: profile(run.params.offload),
            mtu: run.params.mtu,
            fault: run.fault.name.to_owned(),
            title: run.fault.title.to_owned(),
            interval_s: INTERVAL.as_secs_f64(),
            asked: self.asked,
            trials: run.trials,
        };
        self.runs.into_iter().map(record).collect()
    }
}

impl FaultRun {
    /// Runs one trial in a fresh testbed.
    fn once(&self, wanted: &BuildOptions<'_>) -> FaultTrial {
        let stood = stand(self.mode, self.params, None, wanted).map_err(|e| e.to_string());
        let injected = stood.and_then(|built| {
            let injected = self.fault.inject(&built.network);
            injected.map(|injected| injected.cost).map_err(|error| error.to_string())
        });
        match injected {
            Ok(cost) => FaultTrial {
                reason: None,
                cost: Some(FaultCost {
                    sent: cost.sent,
                    received: cost.received,
                    twice: cost.twice,
                    outage_s: cost.outage.as_secs_f64(),
                }),
            },
            // A failed trial stays in the results; the other trials go on.
            Err(reason) => FaultTrial { reason: Some(reason), cost: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use lab::{Capabilities, Error, Label, Network, Unsupported};
    use testbed::Offload;

    use super::*;

    /// A mode with the faults of `bgp` whose build always fails.
    struct Broken {
        /// The last build sets `interrupted`.
        builds_left: AtomicU32,
        interrupted: &'static AtomicBool,
    }

    impl Mode for Broken {
        fn label(&self) -> Label {
            Label::new("broken", "none")
        }

        fn probe(&self, _: &Capabilities) -> Result<(), Unsupported> {
            Ok(())
        }

        fn build(&self, _: &Params) -> Result<Network, Error> {
            if self.builds_left.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.interrupted.store(true, Ordering::Relaxed);
            }
            Err(Error::OfMachine("nic0".to_owned()))
        }

        fn faults(&self) -> &'static [Fault] {
            lab::find("bgp").unwrap().faults()
        }
    }

    /// Runs two trials of each fault, interrupted in the build of this
    /// number.
    fn tried(interrupted_in: u32) -> FaultRuns {
        let stop: &AtomicBool = Box::leak(Box::default());
        let mode = Broken { builds_left: interrupted_in.into(), interrupted: stop };
        let mode: &'static dyn Mode = Box::leak(Box::new(mode));
        let built = (mode, Params::new(1500, Offload::Full), Duration::from_secs(2));
        let mut runs = FaultRuns::new(std::iter::once(built), 2);
        let wanted =
            BuildOptions { offloads: &[], mtus: &[], steered_to: None, ipv6: false, ecn: false };
        runs.inject(&wanted, &mut Progress::new("test"), stop);
        runs
    }

    #[test]
    fn a_trial_that_fails_has_its_reason_and_the_others_go_on() {
        let runs = tried(u32::MAX);
        assert!(runs.is_whole());
        let own = lab::find("bgp").unwrap().faults();
        let seconds: u32 = own.iter().map(|fault| fault.seconds + 2).sum();
        assert_eq!(runs.expected(), Duration::from_secs(2 * u64::from(seconds)));
        let records = runs.records();
        assert_eq!(records.len(), own.len());
        for (record, fault) in records.iter().zip(own) {
            assert_eq!((&*record.fault, record.asked, record.trials.len()), (fault.name, 2, 2));
            for trial in &record.trials {
                let reason = trial.reason.as_deref().unwrap();
                assert!(trial.cost.is_none() && reason.starts_with("nic0: "), "{trial:?}");
            }
        }
    }

    #[test]
    fn an_interrupted_trial_is_left_out_and_none_follows_it() {
        let runs = tried(2);
        assert!(!runs.is_whole());
        let trials: Vec<usize> = runs.records().iter().map(|record| record.trials.len()).collect();
        assert_eq!(trials, [1, 0]);
    }

    #[test]
    fn modes_without_faults_are_refused_and_the_others_named() {
        let modes =
            |names: &[&str]| names.iter().map(|n| lab::find(n).unwrap()).collect::<Vec<_>>();
        let error = check(1, &modes(&["host", "vxlan"])).unwrap_err().to_string();
        assert!(error.starts_with("--faults: none of the modes supports a fault"), "{error}");
        for known in ["bgp,", "bgp-frr-rr-tenants", "evpn-rr+accel", "vrouter-ha"] {
            assert!(error.contains(known), "{known}: {error}");
        }
        assert!(check(0, &modes(&["host"])).is_ok());
        assert!(check(1, &modes(&["host", "evpn"])).is_ok());
        let none = FaultRuns::new(std::iter::empty(), 0);
        assert!(none.is_whole() && none.expected() == Duration::ZERO);
    }
}
