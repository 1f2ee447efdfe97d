//! Rules of results files beyond the types: ranges, a verified path for every figure, and a reason
//! for every gap.

use std::fmt::Display;

use crate::background::{Background, Disturbance, MachineBackground};
use crate::cell::Cell;
use crate::fault::{FaultRecord, FaultTrial};
use crate::file::{MOST_CELLS, MOST_LISTED, Results, SCHEMA};
use crate::interval::Interval;
use crate::machine::Machine;
use crate::names::Status;
use crate::plan::{MOST_BLOCKS, Plan};
use crate::sample::{Bin, DropPoint, HopRecord, Latency, Loss, Pacing, Sample};
use crate::timeline::Timeline;
use crate::workload::MAX_MESSAGE_BYTES;

/// Most samples of all cells together. Each is a row of the page.
pub const MOST_SAMPLES: usize = 500_000;

/// Longest part of a file quoted in an error, bytes.
const LONGEST_QUOTE: usize = 120;

/// A field that violates the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pointer}: expected {expected}, got {got}")]
pub struct FieldError {
    /// JSON pointer (RFC 6901) to the field.
    pub pointer: String,
    /// Values that the schema allows.
    pub expected: String,
    /// Value in the file.
    pub got: String,
}

impl Results {
    /// Checks the rules beyond the types: ranges, a verified path for every figure, and a reason
    /// for every gap.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self) -> Result<(), FieldError> {
        one_of("/schema", &self.schema, &[SCHEMA])?;
        utc("/started", &self.started)?;
        utc("/finished", &self.finished)?;
        machine("/machine", &self.machine)?;
        if let Some(peer) = &self.peer {
            machine("/peer", peer)?;
        }
        if let Some(timeline) = &self.timeline {
            check_timeline(timeline, self.cells.len())?;
        }
        plan(&self.plan)?;
        if let Some(found) = &self.background {
            background(found)?;
        }
        // A report has a row per cell, so a huge file would make a huge page.
        if self.cells.len() > MOST_CELLS {
            return wrong("/cells", format!("at most {MOST_CELLS} cells"), self.cells.len());
        }
        for (at, got) in [
            ("/modes", self.modes.len()),
            ("/testbeds", self.testbeds.len()),
            ("/warnings", self.warnings.len()),
            ("/faults", self.faults.len()),
        ] {
            // Lists are rendered one by one; a file must not make a page of any size.
            if got > MOST_LISTED {
                return wrong(at, format!("at most {MOST_LISTED} entries"), got);
            }
        }
        let samples = self.cells.iter().map(|cell| cell.samples.len()).sum::<usize>();
        // Statistics take time by sample.
        if samples > MOST_SAMPLES {
            let expected = format!("at most {MOST_SAMPLES} samples in all cells");
            return wrong("/cells", expected, samples);
        }
        for (i, mode) in self.modes.iter().enumerate() {
            // A gap in a report needs its reason.
            if mode.status != Status::Ok && mode.reason.is_none() {
                return wrong(
                    format!("/modes/{i}/reason"),
                    "a reason, because the mode is not \
                    ok",
                    "null",
                );
            }
        }
        for (i, testbed) in self.testbeds.iter().enumerate() {
            let at = format!("/testbeds/{i}");
            mtu(&format!("{at}/mtu"), testbed.mtu)?;
            mtu(&format!("{at}/tenant_mtu"), testbed.tenant_mtu)?;
            for (k, device) in testbed.devices.iter().enumerate() {
                mtu(&format!("{at}/devices/{k}/mtu"), device.mtu)?;
            }
        }
        for (i, fault) in self.faults.iter().enumerate() {
            check_fault(&format!("/faults/{i}"), fault)?;
        }
        for (i, cell) in self.cells.iter().enumerate() {
            check_cell(&format!("/cells/{i}"), cell)?;
        }
        Ok(())
    }
}

type Checked = Result<(), FieldError>;

fn machine(at: &str, machine: &Machine) -> Checked {
    at_least_one(&format!("{at}/cpus"), machine.cpus as u64)?;
    share(&format!("{at}/idle_load"), machine.idle_load)
}

fn plan(plan: &Plan) -> Checked {
    for (i, value) in plan.mtu.iter().enumerate() {
        mtu(&format!("/plan/mtu/{i}"), *value)?;
    }
    for (i, size) in plan.sizes.iter().enumerate() {
        message_bytes(&format!("/plan/sizes/{i}"), *size)?;
    }
    for (i, flows) in plan.flows.iter().enumerate() {
        at_least_one(&format!("/plan/flows/{i}"), (*flows).into())?;
    }
    for (i, outstanding) in plan.outstanding.iter().enumerate() {
        at_least_one(&format!("/plan/outstanding/{i}"), (*outstanding).into())?;
    }
    for (i, percent) in plan.load_percent.iter().enumerate() {
        not_negative(&format!("/plan/load_percent/{i}"), *percent)?;
    }
    at_least_one("/plan/blocks", plan.blocks.into())?;
    at_least_one("/plan/max_blocks", plan.max_blocks.into())?;
    // Statistics take time by block.
    if plan.max_blocks > MOST_BLOCKS {
        return wrong("/plan/max_blocks", format!("at most {MOST_BLOCKS}"), plan.max_blocks);
    }
    // The cost of planning interim analyses is quadratic in their blocks.
    let mut analyses = plan.confidence.interim_analyses.iter().enumerate();
    if let Some((i, look)) = analyses.find(|(_, blocks)| **blocks > MOST_BLOCKS) {
        return wrong(
            format!("/plan/confidence/looks/{i}"),
            format!("at most {MOST_BLOCKS}"),
            look,
        );
    }
    if plan.duration_s.is_nan() || plan.duration_s <= 0.0 {
        return wrong("/plan/duration_s", "seconds above 0", plan.duration_s);
    }
    not_negative("/plan/warmup_s", plan.warmup_s)?;
    confidence("/plan/confidence/level", plan.confidence.level)?;
    if let Some(half_width) = plan.confidence.half_width {
        not_negative("/plan/confidence/half_width", half_width)?;
    }
    Ok(())
}

fn background(found: &Background) -> Checked {
    not_negative("/background/strict_share", found.strict_share.unwrap_or(0.0))?;
    let machines = [("machine", Some(&found.machine)), ("peer", found.peer.as_ref())];
    for (whose, machine) in machines {
        // Only runs between two machines have a peer.
        let Some(MachineBackground { other, busiest, steal, throttled }) = machine else {
            continue;
        };
        for (name, usual) in
            [("other", other), ("busiest", busiest), ("steal", steal), ("throttled", throttled)]
        {
            let at = format!("/background/{whose}/{name}");
            not_negative(&format!("{at}/level"), usual.level)?;
            not_negative(&format!("{at}/spread"), usual.spread)?;
        }
    }
    Ok(())
}

fn disturbance(at: &str, by: &Disturbance) -> Checked {
    for (name, share) in [
        ("steal_share", by.steal_share),
        ("throttled_share", by.throttled_share),
        ("other_share", by.other_share),
        ("busiest_share", by.busiest_share),
    ] {
        not_negative(&format!("{at}/{name}"), share)?;
    }
    Ok(())
}

fn check_fault(at: &str, fault: &FaultRecord) -> Checked {
    mtu(&format!("{at}/mtu"), fault.mtu)?;
    not_negative(&format!("{at}/interval_s"), fault.interval_s)?;
    at_least_one(&format!("{at}/asked"), fault.asked.into())?;
    // Reports count trials against the requested number.
    if fault.trials.len() > fault.asked as usize {
        let expected = format!("at least as many as the trials, {}", fault.trials.len());
        return wrong(format!("{at}/asked"), expected, fault.asked);
    }
    for (i, trial) in fault.trials.iter().enumerate() {
        let at = format!("{at}/trials/{i}");
        let FaultTrial { reason, cost } = trial;
        let Some(cost) = cost else {
            if reason.is_none() {
                return wrong(format!("{at}/cost"), "figures, because there is no reason", "null");
            }
            // A trial without figures has nothing else to check.
            continue;
        };
        if let Some(reason) = reason {
            let got = quote(format!("{reason:?}"));
            return wrong(format!("{at}/reason"), "null, because there are figures", got);
        }
        not_negative(&format!("{at}/cost/outage_s"), cost.outage_s)?;
        // A negative loss would be reported.
        if cost.received > cost.sent {
            let expected = format!("at most what was sent, {}", cost.sent);
            return wrong(format!("{at}/cost/received"), expected, cost.received);
        }
    }
    Ok(())
}

fn check_cell(at: &str, cell: &Cell) -> Checked {
    mtu(&format!("{at}/mtu"), cell.mtu)?;
    message_bytes(&format!("{at}/message_bytes"), cell.message_bytes)?;
    at_least_one(&format!("{at}/flows"), cell.flows.into())?;
    at_least_one(&format!("{at}/outstanding"), cell.outstanding.into())?;
    if let Some(blocks) = cell.settled_after {
        at_least_one(&format!("{at}/settled_after"), blocks.into())?;
    }
    if let Some(offered) = &cell.offered {
        not_negative(&format!("{at}/offered/per_s"), offered.per_s)?;
    }
    match (cell.status, &cell.median, &cell.reason) {
        (Status::Ok, None, _) => {
            return wrong(format!("{at}/median"), "a number where status is ok", "null");
        }
        (Status::Ok, _, Some(reason)) => {
            let got = quote(format!("{reason:?}"));
            return wrong(format!("{at}/reason"), "null where status is ok", got);
        }
        (Status::Failed | Status::Unsupported, Some(median), _) => {
            return wrong(format!("{at}/median"), "null where status is not ok", median);
        }
        (Status::Failed | Status::Unsupported, None, None) => {
            return wrong(format!("{at}/reason"), "a reason, because there is no figure", "null");
        }
        _ => {}
    }
    if let Some(median) = cell.median {
        not_negative(&format!("{at}/median"), median)?;
    }
    if let Some(ratio) = &cell.ratio {
        interval(&format!("{at}/ratio"), ratio)?;
    }
    if let Some(ratio) = cell.service_demand.as_ref().and_then(|demand| demand.ratio.as_ref()) {
        interval(&format!("{at}/service_demand/ratio"), ratio)?;
    }
    if let Some(ratio) = cell.tool.as_ref().and_then(|tool| tool.ratio.as_ref()) {
        interval(&format!("{at}/tool/ratio"), ratio)?;
    }
    figures(at, cell.latency_us.as_ref(), cell.loss.as_ref(), &cell.hops)?;
    distributions(at, &cell.histogram, cell.drop_point.as_ref(), cell.pace.as_ref())?;
    for (i, sample) in cell.samples.iter().enumerate() {
        check_sample(&format!("{at}/samples/{i}"), sample)?;
    }
    Ok(())
}

fn check_sample(at: &str, sample: &Sample) -> Checked {
    // A figure without a verified path may belong to another path.
    if sample.valid && !sample.path_proved {
        return wrong(format!("{at}/path_proved"), "true for a valid sample", "false");
    }
    match &sample.invalid_reason {
        Some(reason) if sample.valid => {
            let got = quote(format!("{reason:?}"));
            return wrong(format!("{at}/invalid_reason"), "null for a valid sample", got);
        }
        None if !sample.valid => {
            return wrong(
                format!("{at}/invalid_reason"),
                "a reason, because the sample is not \
                valid",
                "null",
            );
        }
        _ => {}
    }
    if let Some(ecn) = &sample.ecn {
        for (name, count) in [("ce", ecn.ce), ("not_ect", ecn.not_ect.unwrap_or(0))] {
            if count > ecn.arrived {
                let expected = format!("at most what arrived, {}", ecn.arrived);
                return wrong(format!("{at}/ecn/{name}"), expected, count);
            }
        }
    }
    let cpu = &sample.cpu;
    for (name, value) in [
        ("value", sample.value),
        ("seconds", sample.seconds),
        ("bits_per_s", sample.bits_per_s),
        ("ratio", sample.ratio.unwrap_or(0.0)),
        ("cpu/user", cpu.user),
        ("cpu/system", cpu.system),
        ("cpu/softirq", cpu.softirq),
        ("cpu/irq", cpu.irq),
        ("cpu/steal", cpu.steal),
        ("cpu/idle", cpu.idle),
    ] {
        not_negative(&format!("{at}/{name}"), value)?;
    }
    for (name, by) in
        [("disturbance", &sample.disturbance), ("peer_disturbance", &sample.peer_disturbance)]
    {
        by.as_ref().map_or(Ok(()), |by| disturbance(&format!("{at}/{name}"), by))?;
    }
    figures(at, sample.latency_us.as_ref(), sample.loss.as_ref(), &sample.hops)?;
    distributions(at, &sample.histogram, sample.drop_point.as_ref(), sample.pace.as_ref())
}

fn distributions(
    at: &str,
    histogram: &[Bin],
    drop_point: Option<&DropPoint>,
    pace: Option<&Pacing>,
) -> Checked {
    let mut below = 0.0;
    for (i, bin) in histogram.iter().enumerate() {
        if bin.us.is_nan() || bin.us <= below {
            let expected = format!("more than the bin before it, {below}");
            return wrong(format!("{at}/histogram/{i}/us"), expected, bin.us);
        }
        below = bin.us;
    }
    for (i, goal) in drop_point.iter().flat_map(|point| point.goals.iter().enumerate()) {
        let at = format!("{at}/drop_point/goals/{i}");
        share(&format!("{at}/loss"), goal.loss)?;
        not_negative(&format!("{at}/per_s"), goal.per_s)?;
        not_negative(&format!("{at}/kept"), goal.kept)?;
    }
    if let Some(pace) = pace {
        for (name, value) in [
            ("intended_per_s", pace.intended_per_s),
            ("sent_per_s", pace.sent_per_s),
            ("late_p50_us", pace.late_p50_us),
            ("late_p99_us", pace.late_p99_us),
            ("late_max_us", pace.late_max_us),
        ] {
            not_negative(&format!("{at}/pace/{name}"), value)?;
        }
    }
    Ok(())
}

fn check_timeline(timeline: &Timeline, cells: usize) -> Checked {
    if timeline.step_s.is_nan() || timeline.step_s <= 0.0 {
        return wrong("/timeline/step_s", "seconds above 0", timeline.step_s);
    }
    let steps = timeline.cpus.first().map_or(0, |cpu| cpu.user.len());
    for (i, cpu) in timeline.cpus.iter().enumerate() {
        for (name, values) in [
            ("user", &cpu.user),
            ("system", &cpu.system),
            ("irq", &cpu.irq),
            ("softirq", &cpu.softirq),
            ("steal", &cpu.steal),
        ] {
            let at = format!("/timeline/cpus/{i}/{name}");
            if values.len() != steps {
                return wrong(at, format!("{steps} values, as in the first list"), values.len());
            }
            for (k, value) in values.iter().enumerate() {
                share(&format!("{at}/{k}"), *value)?;
            }
        }
    }
    for (i, interrupt) in timeline.interrupts.iter().enumerate() {
        let at = format!("/timeline/interrupts/{i}/per_s");
        if interrupt.per_s.len() != steps {
            return wrong(at, format!("{steps} values, as for each CPU"), interrupt.per_s.len());
        }
        for (k, value) in interrupt.per_s.iter().enumerate() {
            not_negative(&format!("{at}/{k}"), *value)?;
        }
    }
    for (i, mark) in timeline.marks.iter().enumerate() {
        not_negative(&format!("/timeline/marks/{i}/at_s"), mark.at_s)?;
        // Charts look the cell up by this index.
        if mark.cell >= cells {
            let expected = format!("the index of one of {cells} cells");
            return wrong(format!("/timeline/marks/{i}/cell"), expected, mark.cell);
        }
    }
    Ok(())
}

/// Checks the figures common to cells and samples.
fn figures(
    at: &str,
    latency: Option<&Latency>,
    loss: Option<&Loss>,
    hops: &[HopRecord],
) -> Checked {
    if let Some(latency) = latency {
        let Latency { p50, p90, p99, p99_9, p99_99, max } = *latency;
        not_negative(&format!("{at}/latency_us/p50"), p50)?;
        for (name, value, below) in [
            ("p90", p90, p50),
            ("p99", p99, p90),
            ("p99_9", p99_9, p99),
            ("p99_99", p99_99, p99_9),
            ("max", max, p99_99),
        ] {
            // Percentiles never decrease.
            if value.is_nan() || value < below {
                let expected = format!("at least the percentile before it, {below}");
                return wrong(format!("{at}/latency_us/{name}"), expected, value);
            }
        }
    }
    if let Some(loss) = loss {
        share(&format!("{at}/loss/fraction"), loss.fraction)?;
    }
    for (i, hop) in hops.iter().enumerate() {
        not_negative(&format!("{at}/hops/{i}/mean_skb_bytes"), hop.mean_skb_bytes)?;
    }
    Ok(())
}

fn interval(at: &str, interval: &Interval) -> Checked {
    let Interval { median, low, high, .. } = *interval;
    not_negative(&format!("{at}/low"), low)?;
    if median.is_nan() || median < low {
        return wrong(format!("{at}/median"), format!("at least low, {low}"), median);
    }
    if high.is_nan() || high < median {
        return wrong(format!("{at}/high"), format!("at least median, {median}"), high);
    }
    at_least_one(&format!("{at}/samples"), interval.samples as u64)?;
    confidence(&format!("{at}/confidence"), interval.confidence)
}

fn one_of(at: &str, got: &str, allowed: &[&str]) -> Checked {
    if allowed.contains(&got) {
        return Ok(());
    }
    let names: Vec<String> = allowed.iter().map(|name| format!("{name:?}")).collect();
    wrong(at, names.join(" or "), quote(format!("{got:?}")))
}

/// Checks for RFC 3339 with seconds and UTC, such as `2025-11-20T21:34:40Z`.
fn utc(at: &str, got: &str) -> Checked {
    let shape = got.strip_suffix('Z').or(got.strip_suffix("+00:00")).and_then(|time| {
        let (seconds, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let digits = !fraction.is_empty() && fraction.bytes().all(|c| c.is_ascii_digit());
        (digits && seconds.len() == 19).then_some(seconds)
    });
    let fits = shape.is_some_and(|seconds| {
        seconds.bytes().zip(*b"0000-00-00T00:00:00").all(|(c, mark)| match mark {
            b'0' => c.is_ascii_digit(),
            _ => c == mark,
        })
    });
    let quoted = || quote(format!("{got:?}"));
    if fits { Ok(()) } else { wrong(at, "a time like 2025-11-20T21:34:40Z", quoted()) }
}

/// Checks an MTU. The minimum of IPv4 is 68 bytes (RFC 791).
fn mtu(at: &str, got: u32) -> Checked {
    if got >= 68 { Ok(()) } else { wrong(at, "an MTU of at least 68 bytes", got) }
}

fn message_bytes(at: &str, got: u32) -> Checked {
    if (1..=MAX_MESSAGE_BYTES).contains(&got) {
        return Ok(());
    }
    wrong(at, format!("1 to {MAX_MESSAGE_BYTES} bytes"), got)
}

fn at_least_one(at: &str, got: u64) -> Checked {
    if got >= 1 { Ok(()) } else { wrong(at, "at least 1", got) }
}

fn not_negative(at: &str, got: f64) -> Checked {
    if got >= 0.0 { Ok(()) } else { wrong(at, "a number of at least 0", got) }
}

fn share(at: &str, got: f64) -> Checked {
    if (0.0..=1.0).contains(&got) { Ok(()) } else { wrong(at, "a share from 0 to 1", got) }
}

fn confidence(at: &str, got: f64) -> Checked {
    if got > 0.0 && got < 1.0 { Ok(()) } else { wrong(at, "above 0 and below 1", got) }
}

fn wrong(pointer: impl Into<String>, expected: impl Into<String>, got: impl Display) -> Checked {
    Err(FieldError { pointer: pointer.into(), expected: expected.into(), got: got.to_string() })
}

/// Shortens a quoted value: an edited value may have any length.
pub(crate) fn quote(mut text: String) -> String {
    if text.len() > LONGEST_QUOTE {
        // Cut between characters.
        let end = (0..=LONGEST_QUOTE).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_seconds() {
        for good in
            ["2025-11-20T21:34:40Z", "2025-11-20T21:34:40.123Z", "2025-11-20T21:34:40+00:00"]
        {
            assert_eq!(utc("/started", good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "Z",
            "2025-11-20",
            "2025-11-20 21:34:40Z",
            "2025-11-20T21:34:40",
            "2025-11-20T21:34:40+01:00",
            "2025-11-20T21:34:40.Z",
            "２025-11-20T21:34:4Z",
        ] {
            assert!(utc("/started", bad).is_err(), "{bad}");
        }
    }
}
