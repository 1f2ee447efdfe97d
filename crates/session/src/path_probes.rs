//! Probes the path of each testbed once, before the first sample.

use std::sync::atomic::{AtomicBool, Ordering};

use measure::path_probe;
use measure::path_under_test::PathUnderTest;
use results::TestbedRecord;

use crate::progress::Progress;

/// Probes each path and records the result. A path that damages or loses packets is marked, so that
/// its cells get the reason instead of figures. Returns a warning for each such path.
pub fn probe(
    subjects: &mut [PathUnderTest],
    testbeds: &mut [TestbedRecord],
    progress: &Progress,
    stop: &AtomicBool,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for (subject, testbed) in subjects.iter_mut().zip(testbeds) {
        // An interrupted run measures nothing, so there is nothing to protect.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let path = format!("{}, offload {}, MTU {}", subject.mode, subject.offload, subject.mtu);
        progress.prepare(format!("probing {path}"));
        let probed = path_probe::probe(subject, stop);
        if !probed.damage.is_empty() {
            let damage = probed.damage.join("; ");
            warnings.push(format!(
                "{path}: not measured, because {damage}; overlane lab run --no-probe measures it \
                 nevertheless"
            ));
            subject.damage = Some(damage);
        }
        tracing::debug!(path, ?probed, "probed");
        testbed.probe = Some(probed);
    }
    warnings
}
