//! `try`: measures a change against a peer, with and without it in the same blocks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use measure::path_probe;
use measure::plan::{self, PlannedCell};
use measure::remote::{Remote, RemoteError, Token, reach};
use measure::run::Ended;
use measure::sampler::Machine;
use report::judged_words;
use results::stats::{block_order, separation_p_value};
use results::verdict::{Carried, Judged, Verdict, blocks_to_prove, judge};
use results::{Results, Sample};
use settings::trial::Trial;
use sys::netns::NetNs;

use crate::assembly::FinishedRun;
use crate::execute::{self, Vary};
use crate::keeping::Keeping;
use crate::progress::Progress;
use crate::remote_paths::{self, Path};
use crate::request::{Asked, RunOptions};
use crate::survey;

/// Time limit for the peer to answer, if it answers only with or only without the change. The
/// kernel gives up on a neighbour after 3 s (`mcast_solicit`).
const REACH_LIMIT: Duration = Duration::from_secs(4);
/// Name of the path in the results.
const PATH: &str = "path";

/// How the measurement of a change ended; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialEnd {
    Whole,
    Interrupted,
    Failed,
}

/// Result of a measurement.
pub struct TrialOutcome {
    pub end: TrialEnd,
    pub verdict: Verdict,
    pub reason: String,
    pub reached: Option<Carried>,
    pub judged: Vec<Judged>,
    pub results: Option<Results>,
}

impl TrialOutcome {
    fn without_results(end: TrialEnd, verdict: Verdict, reason: impl Into<String>) -> TrialOutcome {
        let (reason, judged) = (reason.into(), Vec::new());
        TrialOutcome { end, verdict, reason, reached: None, judged, results: None }
    }
}

/// The change on trial, the peer, and the checked request.
pub struct Session {
    pub address: SocketAddr,
    pub token: Option<Token>,
    pub stop: Arc<AtomicBool>,
    pub trial: Trial,
    pub asked: Asked,
    pub run_options: RunOptions,
    /// The change, as the results name it.
    pub change: String,
}

impl Session {
    /// Measures the change. If the peer answers only with or without it, counts answers instead.
    ///
    /// # Errors
    /// A peer that is unreachable with and without the change; a change that cannot be made or undone.
    pub fn prove(&mut self) -> anyhow::Result<TrialOutcome> {
        let mut progress = Progress::new(&format!("connecting to {}", self.address));
        let here = Arc::new(NetNs::current()?);
        let connected =
            Remote::connect(self.address, self.token.clone(), &here, Arc::clone(&self.stop));
        let error = match connected {
            Ok(remote) => {
                let path = Path { name: PATH.to_owned(), remote: Arc::new(remote) };
                return self.measure(path, &here, &mut progress);
            }
            Err(RemoteError::Stopped) => return Ok(interrupted()),
            Err(error) => error,
        };
        // An answer that stops halfway also counts as silence: full-size frames are lost.
        let silent = error.is_silence() || self.reach().is_err_and(|error| error.is_silence());
        // Other errors, such as a wrong token, do not depend on the change.
        if !silent {
            return Err(error.into());
        }
        progress.prepare("checking whether the peer answers");
        let outcome = self.by_answers(error);
        progress.finish();
        outcome
    }

    fn reach(&self) -> Result<(), RemoteError> {
        reach(self.address, self.token.as_ref(), REACH_LIMIT, &self.stop)
    }

    /// Without the change, the peer does not answer. Counts how often it answers with it.
    fn by_answers(&mut self, error: RemoteError) -> anyhow::Result<TrialOutcome> {
        self.trial.make()?;
        if let Err(changed) = self.reach() {
            self.trial.take_back()?;
            return match changed {
                RemoteError::Stopped => Ok(interrupted()),
                changed => Err(anyhow::Error::new(error)).with_context(|| {
                    format!("unreachable with the change ({changed}) and without it")
                }),
            };
        }
        let level = self.run_options.stopping.level;
        let rounds = blocks_to_prove(level);
        let mut answered = [0, 0];
        for round in 0..rounds {
            for side in block_order(self.run_options.seed, round as u32, 2) {
                if side == 1 {
                    self.trial.make()?
                } else {
                    self.trial.take_back()?
                }
                match self.reach() {
                    Ok(()) => answered[side] += 1,
                    // Ctrl-C: the caller undoes the change.
                    Err(RemoteError::Stopped) => return Ok(interrupted()),
                    Err(error) if error.is_silence() => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.trial.take_back()?;
        let carried = Carried {
            as_found: (rounds, answered[0]),
            changed: (rounds, answered[1]),
            // Only a perfect separation of all rounds counts as proof.
            p_value: if answered == [0, rounds] { separation_p_value(rounds, rounds) } else { 1.0 },
        };
        let proven = carried.p_value <= 1.0 - level;
        let (verdict, reason) = match proven {
            true => (Verdict::Better, "the peer answers only with the change"),
            false => (Verdict::Undecided, "not proven better"),
        };
        Ok(TrialOutcome {
            reached: Some(carried),
            ..TrialOutcome::without_results(TrialEnd::Whole, verdict, reason)
        })
    }

    fn measure(
        &mut self,
        path: Path,
        here: &Arc<NetNs>,
        progress: &mut Progress,
    ) -> anyhow::Result<TrialOutcome> {
        let started = SystemTime::now();
        let paths = [path];
        let (asked, mut run_options) = (&self.asked, self.run_options.clone());
        remote_paths::check_limits(asked, &run_options, &paths)?;
        let mut machine = Machine::open(true)?;
        if let Some(pid) = paths[0].remote.process_here() {
            machine.add_own_process(pid);
        }
        run_options.placement = remote_paths::placement(run_options.placement.policy, &paths)?;
        let may_unpin = !run_options.given.placement && remote_paths::on_one_machine(&paths);
        let of_server = remote_paths::first_lines(&paths, &run_options);
        let survey =
            survey::look_and_place(&mut machine, &mut run_options, may_unpin, of_server, progress)?;
        run_options.shorten_pairs(&survey);
        let subjects = [paths[0].subject(here, paths[0].mtu())];
        let cells = plan::trial_cells(&asked.asks);
        let change = self.change.clone();
        let mut plan = run_options.plan(cells, vec![change.clone()], &survey);
        // A side without traffic counts as broken only after enough samples for a proof.
        plan.hopeless_after = blocks_to_prove(run_options.stopping.level);
        let mut vary = OnTrial {
            trial: &mut self.trial,
            remote: &paths[0].remote,
            stop: &self.stop,
            failed: None,
        };
        let mut keeping = Keeping::default();
        let run =
            execute::run(progress, &plan, &subjects, &machine, &mut vary, &mut keeping, &self.stop);
        let failed = vary.failed.take();
        let (outcome, timeline) = run?;
        let ended = outcome.ended;
        let mut warnings = remote_paths::warnings(&paths);
        warnings.extend(survey::warnings(&survey, &run_options));
        let record = remote_paths::record(&paths, vec![change]);
        let run = FinishedRun {
            asked,
            run_options: &run_options,
            started,
            machine: &machine,
            privileges: remote_paths::privileges(),
            survey: &survey,
        };
        let results = run.results(outcome, record, timeline, warnings)?;
        let judged = judge(&results.cells, run_options.stopping.level);
        let (verdict, reason) = all(&results, &judged);
        let (end, reason) = match (failed, ended) {
            (Some(reason), _) => (TrialEnd::Failed, reason),
            (None, Ended::Interrupted) => (TrialEnd::Interrupted, interrupted().reason),
            (None, Ended::Failed) => (TrialEnd::Failed, "the peer disappeared".to_owned()),
            (None, _) => (TrialEnd::Whole, reason),
        };
        let results = Some(results);
        Ok(TrialOutcome { end, verdict, reason, reached: None, judged, results })
    }

    /// Keeps the change if it is proven better, otherwise undoes it. Returns the numbers of its
    /// journal entries.
    ///
    /// # Errors
    /// A change that cannot be made or undone.
    pub fn settle(
        self,
        may_keep: bool,
        mut outcome: TrialOutcome,
    ) -> anyhow::Result<(Vec<u64>, TrialOutcome)> {
        let Session { address, token, stop, mut trial, .. } = self;
        if outcome.end == TrialEnd::Whole && outcome.verdict == Verdict::Better {
            // A faster path that damages packets is worse.
            match probe(&mut trial, address, token.as_ref(), &stop)? {
                Probed::Sound => {}
                Probed::Damaged(damage) => {
                    outcome.verdict = Verdict::Worse;
                    outcome.reason = format!("with it, {damage}; {}", outcome.reason);
                }
                Probed::Unknown(remark) => outcome.reason = format!("{}; {remark}", outcome.reason),
            }
            if stop.load(Ordering::Relaxed) {
                trial.take_back()?;
                let (end, reason) = (TrialEnd::Interrupted, interrupted().reason);
                return Ok((Vec::new(), TrialOutcome { end, reason, ..outcome }));
            }
        }
        if outcome.end != TrialEnd::Whole || outcome.verdict != Verdict::Better || !may_keep {
            if outcome.end == TrialEnd::Whole && outcome.verdict == Verdict::Better {
                outcome.reason = format!("{}; --keep never", outcome.reason);
            }
            trial.take_back()?;
            return Ok((Vec::new(), outcome));
        }
        trial.make()?;
        // The proof does not count if the peer is unreachable now.
        if let Err(error) = reach(address, token.as_ref(), REACH_LIMIT, &stop) {
            trial.take_back()?;
            let (end, reason) = match error {
                RemoteError::Stopped => (TrialEnd::Interrupted, interrupted().reason),
                error => (TrialEnd::Failed, format!("proven better, but then: {error}")),
            };
            return Ok((Vec::new(), TrialOutcome { end, reason, ..outcome }));
        }
        let entries = trial.keep()?.iter().map(|entry| entry.id).collect();
        Ok((entries, outcome))
    }
}

/// Result of a probe of the path with the change.
enum Probed {
    Sound,
    /// Damage that the path does not have without the change.
    Damaged(String),
    /// Damage that has another cause, or a failed probe, as a remark.
    Unknown(String),
}

/// Probes the path with the change, and without it if packets are damaged.
fn probe(
    trial: &mut Trial,
    address: SocketAddr,
    token: Option<&Token>,
    stop: &AtomicBool,
) -> anyhow::Result<Probed> {
    trial.make()?;
    let damage = match path_probe::of_server(address, token, stop) {
        Ok(probed) => probed.damage,
        Err(reason) => return Ok(Probed::Unknown(format!("the path was not probed: {reason}"))),
    };
    if damage.is_empty() {
        return Ok(Probed::Sound);
    }
    let damage = damage.join("; ");
    trial.take_back()?;
    Ok(match path_probe::of_server(address, token, stop) {
        Ok(probed) if !probed.damage.is_empty() => {
            Probed::Unknown(format!("with and without it, {damage}"))
        }
        _ => Probed::Damaged(damage),
    })
}

fn interrupted() -> TrialOutcome {
    TrialOutcome::without_results(
        TrialEnd::Interrupted,
        Verdict::Unmeasured,
        "ended by Ctrl-C or SIGTERM",
    )
}

/// Combines the verdicts of all workloads. One that is worse rules out the change.
fn all(results: &Results, judged: &[Judged]) -> (Verdict, String) {
    let ranked = [Verdict::Worse, Verdict::Better, Verdict::Undecided];
    let verdict = ranked.into_iter().find(|one| judged.iter().any(|j| j.verdict == *one));
    let verdict = verdict.unwrap_or(Verdict::Unmeasured);
    let words = judged.iter().filter(|judged| judged.verdict == verdict);
    let words: Vec<String> = words.map(|judged| judged_words(results, judged)).collect();
    (verdict, words.join("; "))
}

/// Makes and undoes the change between samples.
struct OnTrial<'a> {
    trial: &'a mut Trial,
    remote: &'a Remote,
    stop: &'a AtomicBool,
    /// Reason for ending the run early.
    failed: Option<String>,
}

impl OnTrial<'_> {
    fn end(&mut self, reason: String) {
        self.failed.get_or_insert(reason);
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Vary for OnTrial<'_> {
    fn set(&mut self, cell: &PlannedCell) -> Result<(), String> {
        let done = match cell.setting {
            Some(_) => self.trial.make(),
            None => self.trial.take_back(),
        };
        done.map_err(|error| {
            self.end(error.to_string());
            error.to_string()
        })
    }

    fn sampled(&mut self, sample: &Sample) {
        // A void sample without the change has another cause.
        if sample.valid || !self.trial.is_made() || self.remote.is_connected() {
            return;
        }
        // The change may have cut the connection: undo it so that the host stays reachable.
        let why = sample.invalid_reason.as_deref().unwrap_or("no answer");
        let mut reason = format!("the connection to the peer was lost with the change: {why}");
        if let Err(error) = self.trial.take_back() {
            reason = format!("{reason}; and the change was not undone: {error}");
        }
        self.end(reason);
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(self.trial.take_back()?)
    }
}
