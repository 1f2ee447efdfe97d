//! A dry run: makes a plan and counts the packets at VXLAN devices. Attaches no program of the fast
//! path.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::reconciler::Reconciler;
use crate::Result;
use crate::model::{DeviceId, MachineSnapshot, Plan};
use crate::programs::{TrafficCounter, TrafficCounts};

/// Interval between checks of `goes_on`.
const TICK: Duration = Duration::from_millis(50);

/// Result of a dry run.
pub(crate) struct Surveyed {
    pub(crate) machine: MachineSnapshot,
    pub(crate) plan: Plan,
    /// Packets at each VXLAN device.
    pub(crate) looked: Vec<(DeviceId, TrafficCounts)>,
    /// Duration of the count.
    pub(crate) time: Duration,
}

impl Reconciler {
    /// Counts for `time` or until `goes_on` returns false, then makes a plan.
    pub(crate) fn survey(
        &mut self,
        time: Duration,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Surveyed> {
        let (mut looked, mut took) = (Vec::new(), Duration::ZERO);
        if !time.is_zero() {
            let (_, plan) = self.plan_anew()?;
            let mut counters = Vec::new();
            for device in &plan.devices {
                let id = DeviceId { netns: device.sandbox.unwrap_or(0), index: device.index };
                let _inside = self.netns(id.netns).enter()?;
                match TrafficCounter::attach(device.index, &device.name) {
                    Ok(counter) => counters.push((id, counter)),
                    // The device was removed meanwhile.
                    Err(error)
                        if sys::tcx::count(device.index, sys::tcx::Hook::Ingress)
                            .is_err_and(|e| e.errno == Errno::ENODEV) =>
                    {
                        tracing::debug!("{error}");
                    }
                    Err(error) => return Err(error),
                }
            }
            let start = Instant::now();
            while goes_on() && start.elapsed() < time {
                std::thread::sleep(TICK.min(time.saturating_sub(start.elapsed())));
            }
            took = start.elapsed();
            for (id, counter) in &counters {
                looked.push((*id, counter.read()?));
            }
        }
        // Plan after detaching: attached counters would counter like foreign programs. The plan
        // includes addresses learned during the count.
        let (machine, plan) = self.plan_anew()?;
        Ok(Surveyed { machine, plan, looked, time: took })
    }
}
