//! `overlane try`: measures a change against a peer, with and without it in the same blocks, and
//! keeps it if it is proven better.

use report::{Tried, trial_text};
use results::verdict::Verdict;
use session::remote_paths;
use session::trial::{Session, TrialEnd};
use settings::Change;
use settings::journal::Journal;
use settings::proposal::{self, ProposalError};
use settings::trial::Trial;

use crate::doctor_args::Reading;
use crate::exit::{Exit, usage};
use crate::host_reading::{check, findings_of, read};
use crate::output::{Destination, print, print_json, style};
use crate::remote::{Target, token};
use crate::trial_guard::Guard;
use crate::try_args::{Keep, Try};
use crate::verb::undo::repair;
use crate::{interrupt, measure_options};

/// Exit code of a change that is not proven better.
const NOT_PROVEN: u8 = 10;
/// Version of the JSON form.
const FORMAT: u32 = 1;
/// Factor for the number of blocks, as a fraction. A trial may end early, so its intervals are
/// wider at every interim analysis and need more blocks. With this factor, the number of samples
/// stays the same: a block has two samples of a workload, not three.
const MORE_BLOCKS: (u32, u32) = (3, 2);
/// Code in the journal for a change that belongs to no finding.
const CODE: &str = "try";

/// Tries the change, and keeps it if it is proven better.
///
/// # Errors
/// Wrong usage; an unusable journal; a change without effect; a peer that is unreachable with and
/// without the change. After an error the change is undone.
pub fn run(arguments: &Try) -> anyhow::Result<Exit> {
    let mut run_options = measure_options::run_options(&arguments.measuring)?;
    let asked = measure_options::asked(&arguments.asking, run_options.impact)?;
    run_options.shorten_bursts(&asked);
    remote_paths::check_engines(&asked)?;
    // Each workload is tested twice, for its throughput or latency and for its CPU time. The
    // error probabilities of all tests add up.
    let level = &mut run_options.stopping.level;
    *level = 1.0 - (1.0 - *level) / (2 * asked.asks.len()) as f64;
    run_options.stopping.proof = true;
    if arguments.measuring.blocks.is_none() {
        run_options.stopping.blocks = run_options.stopping.blocks * MORE_BLOCKS.0 / MORE_BLOCKS.1;
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
    let change = change(arguments);
    let mut session = Session { address, token, stop, trial, asked, run_options, change };
    // Check that the change can be made and undone before measuring.
    session.trial.make()?;
    session.trial.take_back()?;
    let outcome = session.prove()?;
    let (entries, outcome) = session.settle(arguments.keep != Keep::Never, outcome)?;
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
        TrialEnd::Whole if trial.verdict == Verdict::Better => Exit::Done,
        TrialEnd::Whole if trial.verdict == Verdict::Unmeasured => Exit::Partly,
        TrialEnd::Whole => Exit::Code(NOT_PROVEN),
        TrialEnd::Interrupted => Exit::Interrupted,
        TrialEnd::Failed => Exit::Partly,
    })
}

/// Returns the changes to try and their code. `None` if the check of `--finding` finds nothing.
fn changes(arguments: &Try) -> anyhow::Result<Option<(String, Vec<Change>)>> {
    if let Some(code) = &arguments.finding {
        let check = check(code)?;
        let (netns, watch) = (arguments.netns.clone(), arguments.watch);
        let reading = Reading { netns, watch, peer: Vec::new(), token: None };
        let findings = findings_of(check, &read(&reading, &arguments.journal.directory)?);
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

/// Returns the name of the change in the results.
fn change(arguments: &Try) -> String {
    match (&arguments.command, &arguments.finding) {
        (Some(command), _) => command.clone(),
        (None, Some(code)) => format!("{code} fixed"),
        (None, None) => String::new(),
    }
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
