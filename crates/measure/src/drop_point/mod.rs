//! NDR and PDR of a path (no-drop rate and partial drop rate, RFC 2544): the highest rates
//! of `udp_stream` at which loss stays within its limits.
//!
//! One search is one sample. Its value is the PDR of 0.1%: what was received at the highest
//! rate that kept loss within that. The NDR is in the results beside it. It repeats worse: on
//! a virtual machine a single datagram that another's interrupt loses decides about it.
//!
//! A trial offers its rate evenly for a fifth of the plan's duration; what was
//! received after it, while queues ran empty, counts as received. The sockets
//! have the kernel's own buffers unless the plan says otherwise: a buffer that
//! holds a good part of a trial would hide that the path is too slow. The search
//! begins at what an unpaced trial receives.
//!
//! Hops, CPU time, service demand and schedule of the sample are those of the
//! best trial at the rate that its value comes from; its loss is that of all
//! trials that count together, as most of them lose nothing or little.

mod search;

use std::time::Duration;

use crate::sampler::loss;
use load::{Load, Measured};
use results::{Pace, Sample};
use search::{Asked, Found, Trial};

/// Loss that each goal allows, the strictest first.
const GOALS: [f64; 3] = [0.0, 0.001, 0.005];
/// Index of the goal whose rate is the sample's value.
const VALUE_GOAL: usize = 1;
/// Bounds this close are one rate; half of what repeated searches may differ.
const WIDTH: f64 = 0.02;
/// Trials by which one side must lead, for a load and for a bound that is kept.
const LEAD: (usize, usize) = (2, 3);
/// Trials of a load after which half of them decide.
const LOAD_TRIALS: usize = 9;
/// Most trials of a search.
const MOST_TRIALS: u32 = 80;
/// A trial is this part of the plan's duration …
const SHARE: u32 = 5;
/// … and not shorter than this, or a scheduler's time slice would be a good
/// part of it.
const SHORTEST: Duration = Duration::from_millis(30);
/// Fewest datagrams that a trial offers: fewer tell no loss from none.
const FEWEST: f64 = 100.0;
/// Share of its schedule that a generator must have sent in time.
const KEPT: f64 = 0.99;
/// Unpaced trials at most until one counts.
const FIRST_TRIES: u32 = 5;
/// What a socket gets where nobody asks, bytes (`net.core.rmem_default` of a
/// kernel that nobody has tuned); asked for by name so that it does not depend
/// on the host's setting.
const SOCKET_BUFFER: u32 = 212_992;

/// One trial: what was counted, and the sample that it would be by itself.
pub(crate) type Trialled = (Measured, Sample);

/// Why there is no rate.
pub(crate) enum Failed {
    /// The run was asked to stop.
    Stopped,
    /// The path is broken, was not taken, or could not be measured.
    Broken(Box<Sample>),
}

/// Searches; `run` makes a trial of a load. What the load does not say (flows,
/// size, CPUs) is as given; its duration is that of a sample. `warmup` comes before each trial.
pub(crate) fn take(
    load: &Load,
    warmup: Duration,
    mut run: impl FnMut(&Load) -> Result<Trialled, Failed>,
) -> Result<Sample, Failed> {
    let trial = Load {
        duration: (load.duration / SHARE).max(SHORTEST),
        // A trial begins with empty queues, as the one before ended: what the path does not
        // want needs none.
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
        // Rounded by the search; a cast saturates.
        let paced = Load { datagrams_per_s: Some(per_s as u64), ..trial.clone() };
        let (measured, sample) = run(&paced)?;
        if !sample.path_proved {
            return Err(Failed::Broken(Box::new(sample)));
        }
        // Something else had the machine. The search tries the rate again.
        if !sample.valid {
            return Ok(Trial::Disturbed);
        }
        let outcome = judge(&measured);
        // A rate that the generator did not keep tells nothing of the path.
        if outcome != Trial::NotKept {
            kept.push((per_s, sample));
        }
        Ok(outcome)
    })?;
    Ok(summed_up(found, kept))
}

/// Sends as fast as it goes: proves the path, and tells where to begin.
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
        // A disturbed trial says nothing of the path; a broken path does.
        if !sample.path_proved || tries == FIRST_TRIES {
            return Err(Failed::Broken(Box::new(sample)));
        }
        tries += 1;
    }
}

/// What a paced trial came to.
fn judge(measured: &Measured) -> Trial {
    let in_time =
        measured.pace.is_some_and(|pace: Pace| pace.sent_per_s >= KEPT * pace.intended_per_s);
    match measured.datagrams.map(|d| (d.intended, d)) {
        // What was given up or refused was not offered: a loss of the generator.
        Some((Some(intended), datagrams)) if in_time && datagrams.sent >= intended => {
            Trial::Counted { intended, received: datagrams.received }
        }
        _ => Trial::NotKept,
    }
}

/// The sample of a search, of the trials that count and their rates.
fn summed_up(found: Found, trials: Vec<(f64, Sample)>) -> Sample {
    let Found { point, narrowed } = found;
    let goal = point.goals[VALUE_GOAL];
    let loss = loss::total(trials.iter().filter_map(|(_, sample)| sample.loss.as_ref()));
    let losing = |sample: &Sample| sample.loss.as_ref().map_or(0.0, |loss| loss.fraction);
    // Without a rate that was kept, what was sent unpaced shows the path.
    let rate = if goal.kept > 0.0 { goal.kept } else { f64::INFINITY };
    let best = trials
        .into_iter()
        .filter(|(per_s, _)| *per_s == rate)
        .map(|(_, sample)| sample)
        .min_by(|a, b| losing(a).total_cmp(&losing(b)));
    let Some(best) = best else { return crate::void::void("no trial counts".to_owned()) };
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
