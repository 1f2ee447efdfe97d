//! NDR and PDR of a path (no-drop rate and partial drop rate, RFC 2544): the highest rates of
//! `udp_stream` at which loss stays within a limit.
//!
//! One search is one sample. Its value is the PDR at 0.1% loss: the rate received at the highest
//! offered rate that kept loss within that limit. The results also contain the NDR. It repeats
//! worse: on a virtual machine a single datagram lost to another guest's interrupt decides it.
//!
//! A trial offers its rate evenly for a fifth of the plan's duration. Datagrams received
//! afterwards, while queues drain, count as received. Sockets use the kernel's default buffers
//! unless the plan sets a size: a buffer that holds a good part of a trial would hide a slow path.
//! The search begins at the rate that an unpaced trial receives.
//!
//! Hops, CPU time, service demand and schedule of the sample come from the best trial at the
//! rate of its value. Its loss is the loss of all counted trials together, as most lose little or
//! nothing.

mod search;

use std::time::Duration;

use crate::sampler::loss;
use load::{Load, Measured};
use results::{Pacing, Sample};
use search::{Asked, Found, Trial};

/// Loss allowed by each goal, strictest first.
const GOALS: [f64; 3] = [0.0, 0.001, 0.005];
/// Index of the goal whose rate is the sample's value.
const VALUE_GOAL: usize = 1;
/// Bounds this close count as one rate: half of the allowed difference of repeated searches.
const WIDTH: f64 = 0.02;
/// Lead in trials that decides a load, and a final bound.
const LEAD: (usize, usize) = (2, 3);
/// After this many trials of a load, the majority decides.
const LOAD_TRIALS: usize = 9;
/// Maximum trials of a search.
const MOST_TRIALS: u32 = 80;
/// A trial takes this fraction of the plan's duration,
const SHARE: u32 = 5;
/// but not less than this, so that a scheduler's time slice stays a small part of it.
const SHORTEST: Duration = Duration::from_millis(30);
/// Minimum datagrams of a trial. Fewer cannot show small losses.
const FEWEST: f64 = 100.0;
/// Share of the schedule that the generator must send in time.
const KEPT: f64 = 0.99;
/// Maximum number of unpaced trials until one counts.
const FIRST_TRIES: u32 = 5;
/// Socket buffer unless the plan sets one, bytes: `net.core.rmem_default` of an untuned kernel.
/// Set explicitly, so that the host's setting does not matter.
const SOCKET_BUFFER: u32 = 212_992;

/// One trial: its measurement, and its sample.
pub(crate) type Trialled = (Measured, Sample);

/// Reason why there is no rate.
pub(crate) enum Failed {
    /// The run was asked to stop.
    Stopped,
    /// The path is broken, was not taken, or could not be measured.
    Broken(Box<Sample>),
}

/// Searches the drop point. `run` runs a trial of a load. `load` gives flows, size and CPUs; its
/// duration is as long as a sample. `warmup` precedes each trial.
pub(crate) fn take(
    load: &Load,
    warmup: Duration,
    mut run: impl FnMut(&Load) -> Result<Trialled, Failed>,
) -> Result<Sample, Failed> {
    let trial = Load {
        duration: (load.duration / SHARE).max(SHORTEST),
        // A trial starts with empty queues, as the previous one ended, so it needs only the
        // warm-up that the path requires.
        warmup,
        socket_buffer_bytes: load.socket_buffer_bytes.or(Some(SOCKET_BUFFER)),
        ..load.clone()
    };
    let mut kept = Vec::new();
    let start = first(&Load { warmup: load.warmup, ..trial.clone() }, &mut run, &mut kept)?;
    let asked = Asked {
        goals: GOALS.to_vec(),
        width: WIDTH,
        lead: LEAD.0,
        sure_lead: LEAD.1,
        load_trials: LOAD_TRIALS,
        most_trials: MOST_TRIALS,
        least: (FEWEST / trial.duration.as_secs_f64()).ceil(),
        start,
    };
    let found = search::search(&asked, |per_s| {
        // Rounded by the search; the cast saturates.
        let paced = Load { datagrams_per_s: Some(per_s as u64), ..trial.clone() };
        let (measured, sample) = run(&paced)?;
        // Datagrams by another path say nothing about this one: the search cannot go on.
        if !sample.path_proved {
            return Err(Failed::Broken(Box::new(sample)));
        }
        // Other load disturbed the trial. The search repeats the rate.
        if !sample.valid {
            return Ok(Trial::Disturbed);
        }
        let outcome = judge(&measured);
        // A rate that the generator did not keep says nothing about the path.
        if outcome != Trial::NotKept {
            kept.push((per_s, sample));
        }
        Ok(outcome)
    })?;
    Ok(summed_up(found, kept))
}

/// Sends unpaced: proves the path, and returns the rate to begin with.
fn first(
    load: &Load,
    run: &mut impl FnMut(&Load) -> Result<Trialled, Failed>,
    kept: &mut Vec<(f64, Sample)>,
) -> Result<f64, Failed> {
    let mut tries = 1;
    loop {
        let (measured, sample) = run(load)?;
        if sample.valid {
            kept.push((f64::INFINITY, sample));
            return Ok(measured.rate());
        }
        // Retry a disturbed trial, but not a broken path.
        if !sample.path_proved || tries == FIRST_TRIES {
            return Err(Failed::Broken(Box::new(sample)));
        }
        tries += 1;
    }
}

/// Classifies a paced trial.
fn judge(measured: &Measured) -> Trial {
    let in_time =
        measured.pace.is_some_and(|pace: Pacing| pace.sent_per_s >= KEPT * pace.intended_per_s);
    match measured.datagrams.map(|d| (d.intended, d)) {
        // Datagrams given up or refused were not offered: the generator missed its rate.
        Some((Some(intended), datagrams)) if in_time && datagrams.sent >= intended => {
            Trial::Counted { intended, received: datagrams.received }
        }
        _ => Trial::NotKept,
    }
}

/// Builds the sample of a search from the counted trials and their rates.
fn summed_up(found: Found, trials: Vec<(f64, Sample)>) -> Sample {
    let Found { point, narrowed } = found;
    let goal = point.goals[VALUE_GOAL];
    let loss = loss::total(trials.iter().filter_map(|(_, sample)| sample.loss.as_ref()));
    let losing = |sample: &Sample| sample.loss.as_ref().map_or(0.0, |loss| loss.fraction);
    // If no rate was kept, the unpaced trial describes the path.
    let rate = if goal.kept > 0.0 { goal.kept } else { f64::INFINITY };
    let best = trials
        .into_iter()
        .filter(|(per_s, _)| *per_s == rate)
        .map(|(_, sample)| sample)
        .min_by(|a, b| losing(a).total_cmp(&losing(b)));
    // The whole search counts as one sample, which then has no value.
    let Some(best) = best else { return crate::void::void("no valid trial".to_owned()) };
    let invalid_reason = if goal.kept == 0.0 {
        Some(format!(
            "no rate found that loses at most {}%: {} trials, {} of them void",
            goal.loss * 100.0,
            point.trials,
            point.void_trials
        ))
    } else if narrowed[VALUE_GOAL] {
        None
    } else {
        Some(format!(
            "the search did not narrow its goals to {}% within {} trials, {} of them void",
            WIDTH * 100.0,
            point.trials,
            point.void_trials
        ))
    };
    Sample {
        value: goal.per_s,
        valid: invalid_reason.is_none(),
        invalid_reason,
        loss: Some(loss),
        drop_point: Some(point),
        ..best
    }
}

#[cfg(test)]
mod tests;
