//! `overlane try`: measures a change against a peer, with and without it in the same blocks, and
//! keeps it if it is proven better.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use measure::plan::{self, PlannedCell};
use measure::remote::{Remote, RemoteError, Token, reach};
use measure::run::Ended;
use measure::sampler::Machine;
use report::{Tried, judged_words, trial_text};
use results::stats::{block_order, separation_p_value};
use results::verdict::{Carried, Judged, Verdict, blocks_to_prove, judge};
use results::{Results, Sample};
use settings::Change;
use settings::journal::Journal;
use settings::proposal::{self, ProposalError};
use settings::trial::Trial;
use sys::netns::NetNs;

use crate::doctor_args::Reading;
use crate::exit::{Exit, usage};
use crate::host_reading::{check, findings_of, read};
use crate::measure_options::{Asked, Manner};
use crate::output::{Destination, print, print_json, style};
use crate::progress::Progress;
use crate::remote::{Target, privileges, token};
use crate::remote_paths::{self, Path};
use crate::run_session::{self, Vary};
use crate::trial_guard::Guard;
use crate::try_args::{Keep, Try};
use crate::verb::undo::repair;
use crate::{assembly, interrupt, survey};

/// Exit code of a change that is not proven better.
const NOT_PROVEN: u8 = 10;
/// Version of the JSON form.
const FORMAT: u32 = 1;
/// Factor for the number of blocks, as a fraction. A trial may end early, so its intervals are
/// wider at every interim analysis and need more blocks. With this factor, the number of samples
/// stays the same: a block has two samples of a workload, not three.
const MORE_BLOCKS: (u32, u32) = (3, 2);
/// Name of the path in the results.
const PATH: &str = "path";
/// Code in the journal for a change that belongs to no finding.
const CODE: &str = "try";
/// Time limit for the peer to answer, if it answers only with or only without the change. The
/// kernel gives up on a neighbour after 3 s (`mcast_solicit`).
const REACH_LIMIT: Duration = Duration::from_secs(4);

/// Tries the change, and keeps it if it is proven better.
///
/// # Errors
/// Wrong usage; an unusable journal; a change without effect; a peer that is unreachable with and
/// without the change. After an error the change is undone.
pub fn run(arguments: &Try) -> anyhow::Result<Exit> {
    let mut manner = Manner::check(&arguments.measuring)?;
    let asked = Asked::check(&arguments.asking, manner.impact)?;
    manner.shorten_bursts(&arguments.measuring, &asked);
    remote_paths::check_engines(&asked)?;
    // Each workload is tested twice, for its throughput or latency and for its CPU time. The
    // error probabilities of all tests add up.
    let level = &mut manner.stopping.level;
    *level = 1.0 - (1.0 - *level) / (2 * asked.asks.len()) as f64;
    manner.stopping.proof = true;
    if arguments.measuring.blocks.is_none() {
        manner.stopping.blocks = manner.stopping.blocks * MORE_BLOCKS.0 / MORE_BLOCKS.1;
    }
    let destination = arguments.out.as_deref().map(Destination::check).transpose()?;
    let token = token(arguments.token.as_deref())?;
    let address = Target::parse("--against", &arguments.against)?.resolve("--against")?;
    let directory = &arguments.journal.directory;
    // Repair may print, but with --json only the result may go to standard output.
    // First undo the changes of killed processes.
    let whole = repair(&Journal::open(directory)?)?;
    let Some((code, changes)) = changes(arguments)? else {
        return Ok(if whole { Exit::Done } else { Exit::Partly });
    };

    let stop = interrupt::flag()?;
    let tried = changes.iter().map(tried).collect();
    // Declared first, so dropped last: it guards the change until everything else is dropped.
    let _guard = Guard::start(directory)?;
    let trial = Trial::begin(directory, &code, changes)?;
    let mut session = Session { address, token, stop, trial };
    // Check that the change can be made and undone before measuring.
    session.trial.make()?;
    session.trial.take_back()?;
    let outcome = session.prove(arguments, &asked, manner)?;
    let (entries, outcome) = session.settle(arguments.keep, outcome)?;
    if let (Some(destination), Some(results)) = (&destination, &outcome.results) {
        destination.write(&(serde_json::to_string_pretty(results)? + "\n"))?;
    }
    let trial = report::Trial {
        format: FORMAT,
        changes: tried,
        against: address.to_string(),
        verdict: outcome.verdict,
        kept: !entries.is_empty(),
        entries,
        reason: outcome.reason,
        reached: outcome.reached,
        judged: outcome.judged,
        results: outcome.results,
    };
    match arguments.json {
        true => print_json(&trial)?,
        false => print(&trial_text(&trial, style()))?,
    }
    Ok(match outcome.end {
        End::Whole if trial.verdict == Verdict::Better => Exit::Done,
        End::Whole if trial.verdict == Verdict::Unmeasured => Exit::Partly,
        End::Whole => Exit::Code(NOT_PROVEN),
        End::Interrupted => Exit::Interrupted,
        End::Failed => Exit::Partly,
    })
}

/// Returns the changes to try and their code. `None` if the check of `--finding` finds nothing.
fn changes(arguments: &Try) -> anyhow::Result<Option<(String, Vec<Change>)>> {
    if let Some(code) = &arguments.finding {
        let check = check(code)?;
        let (netns, watch) = (arguments.netns.clone(), arguments.watch);
        let reading = Reading { netns, watch, peer: Vec::new(), token: None };
        let findings = findings_of(check, &read(&reading)?);
        let fixes = findings.iter().filter_map(|finding| finding.fix.as_ref());
        let mut changes: Vec<Change> = Vec::new();
        for change in fixes.flat_map(|fix| &fix.changes) {
            // Findings at both endpoints may propose the same change.
            if !changes.contains(change) {
                changes.push(change.clone());
            }
        }
        if changes.is_empty() && !findings.is_empty() {
            let by_hand = "it has no automatic fix: give the command, and --undo-with";
            return Err(usage("--finding", format!("{}: {by_hand}", check.code)));
        }
        if changes.is_empty() {
            print(&format!("{} has no finding here", check.code))?;
            return Ok(None);
        }
        return Ok(Some((check.code.to_owned(), changes)));
    }
    let command = arguments.command.as_deref().unwrap_or_default();
    let changes = match &arguments.undo_with {
        Some(inverse) => vec![Change::command_with_inverse(command, inverse)?],
        // Without --undo-with, the command must be one whose inverse can be derived.
        None => proposal::changes(command).map_err(|error| match error {
            ProposalError::Apply(error) => anyhow::Error::new(error).context(command.to_owned()),
            ProposalError::Unknown(_) => usage("COMMAND", format!("{error} (--undo-with COMMAND)")),
            error => usage("COMMAND", error),
        })?,
    };
    Ok(Some((CODE.to_owned(), changes)))
}

fn tried(change: &Change) -> Tried {
    Tried {
        object: change.object(),
        from: change.from.clone(),
        to: change.to.clone(),
        command: change.command(),
        undo: change.undo(),
    }
}

/// How the measurement of a change ended; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Interrupted,
    Failed,
}

/// Result of a measurement.
struct Outcome {
    end: End,
    verdict: Verdict,
    reason: String,
    reached: Option<Carried>,
    judged: Vec<Judged>,
    results: Option<Results>,
}

impl Outcome {
    fn without_results(end: End, verdict: Verdict, reason: impl Into<String>) -> Outcome {
        let (reason, judged) = (reason.into(), Vec::new());
        Outcome { end, verdict, reason, reached: None, judged, results: None }
    }
}

/// The change on trial, and the peer.
struct Session {
    address: SocketAddr,
    token: Option<Token>,
    stop: Arc<AtomicBool>,
    trial: Trial,
}

impl Session {
    /// Measures the change. If the peer answers only with or without it, counts answers instead.
    fn prove(&mut self, arguments: &Try, asked: &Asked, manner: Manner) -> anyhow::Result<Outcome> {
        let mut progress = Progress::new(&format!("connecting to {}", self.address));
        let here = Arc::new(NetNs::current()?);
        let connected =
            Remote::connect(self.address, self.token.clone(), &here, Arc::clone(&self.stop));
        let error = match connected {
            Ok(remote) => {
                let path = Path { name: PATH.to_owned(), remote: Arc::new(remote) };
                return self.measure(arguments, asked, manner, path, &here, &mut progress);
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
        let outcome = self.by_answers(&manner, error);
        progress.finish();
        outcome
    }

    fn reach(&self) -> Result<(), RemoteError> {
        reach(self.address, self.token.as_ref(), REACH_LIMIT, &self.stop)
    }

    /// Without the change, the peer does not answer. Counts how often it answers with it.
    fn by_answers(&mut self, manner: &Manner, error: RemoteError) -> anyhow::Result<Outcome> {
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
        let level = manner.stopping.level;
        let rounds = blocks_to_prove(level);
        let mut answered = [0, 0];
        for round in 0..rounds {
            for side in block_order(manner.seed, round as u32, 2) {
                if side == 1 {
                    self.trial.make()?
                } else {
                    self.trial.take_back()?
                }
                match self.reach() {
                    Ok(()) => answered[side] += 1,
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
        Ok(Outcome {
            reached: Some(carried),
            ..Outcome::without_results(End::Whole, verdict, reason)
        })
    }

    fn measure(
        &mut self,
        arguments: &Try,
        asked: &Asked,
        mut manner: Manner,
        path: Path,
        here: &Arc<NetNs>,
        progress: &mut Progress,
    ) -> anyhow::Result<Outcome> {
        let started = SystemTime::now();
        let paths = [path];
        remote_paths::check_limits(asked, &manner, &paths)?;
        let mut machine = Machine::open(true)?;
        if let Some(pid) = paths[0].remote.process_here() {
            machine.add_own_process(pid);
        }
        manner.placement = remote_paths::placement(arguments.measuring.placement(), &paths)?;
        let may_unpin =
            arguments.measuring.placement.is_none() && remote_paths::on_one_machine(&paths);
        let of_server = remote_paths::first_lines(&paths, &manner);
        let survey =
            survey::look_and_place(&mut machine, &mut manner, may_unpin, of_server, progress)?;
        manner.shorten_pairs(&arguments.measuring, &survey);
        let subjects = [paths[0].subject(here, paths[0].mtu())];
        let cells = plan::trial_cells(&asked.asks);
        let change = match (&arguments.command, &arguments.finding) {
            (Some(command), _) => command.clone(),
            (None, Some(code)) => format!("{code} fixed"),
            (None, None) => String::new(),
        };
        let mut plan = manner.plan(cells, vec![change.clone()], &survey);
        // A side without traffic counts as broken only after enough samples for a proof.
        plan.hopeless_after = blocks_to_prove(manner.stopping.level);
        let mut vary = OnTrial {
            trial: &mut self.trial,
            remote: &paths[0].remote,
            stop: &self.stop,
            failed: None,
        };
        let run = run_session::run(progress, &plan, &subjects, &machine, &mut vary, &self.stop);
        let failed = vary.failed.take();
        let (outcome, timeline) = run?;
        let ended = outcome.ended;
        let mut warnings = remote_paths::warnings(&paths);
        warnings.extend(survey::warnings(&survey, &manner));
        let record = remote_paths::record(&paths, vec![change]);
        let run = assembly::FinishedRun {
            asked,
            manner: &manner,
            started,
            machine: &machine,
            privileges: privileges(),
            survey: &survey,
        };
        let results = run.results(outcome, record, timeline, warnings)?;
        let judged = judge(&results.cells, manner.stopping.level);
        let (verdict, reason) = all(&results, &judged);
        let (end, reason) = match (failed, ended) {
            (Some(reason), _) => (End::Failed, reason),
            (None, Ended::Interrupted) => (End::Interrupted, interrupted().reason),
            (None, Ended::Failed) => (End::Failed, "the peer disappeared".to_owned()),
            (None, _) => (End::Whole, reason),
        };
        let results = Some(results);
        Ok(Outcome { end, verdict, reason, reached: None, judged, results })
    }

    /// Keeps the change if it is proven better, otherwise undoes it. Returns the numbers of its
    /// journal entries.
    fn settle(self, keep: Keep, mut outcome: Outcome) -> anyhow::Result<(Vec<u64>, Outcome)> {
        let Session { address, token, stop, mut trial } = self;
        if outcome.end != End::Whole || outcome.verdict != Verdict::Better || keep == Keep::Never {
            if outcome.end == End::Whole && outcome.verdict == Verdict::Better {
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
                RemoteError::Stopped => (End::Interrupted, interrupted().reason),
                error => (End::Failed, format!("proven better, but then: {error}")),
            };
            return Ok((Vec::new(), Outcome { end, reason, ..outcome }));
        }
        let entries = trial.keep()?.iter().map(|entry| entry.id).collect();
        Ok((entries, outcome))
    }
}

fn interrupted() -> Outcome {
    Outcome::without_results(End::Interrupted, Verdict::Unmeasured, "ended by Ctrl-C or SIGTERM")
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
