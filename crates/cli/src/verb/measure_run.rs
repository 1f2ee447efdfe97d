//! `overlane measure run`: measures a path to another machine, and compares it with a second path.

use session::finished::Finished;
use session::remote_paths;
use session::remote_run::RemoteRun;

use crate::args::MeasureRun;
use crate::by_name::ByName;
use crate::exit::{Exit, usage};
use crate::output::{Destination, Kept, deliver, events};
use crate::remote::{Family, Target, token};
use crate::{interrupt, measure_options};

/// Maximum length of a path's name, in bytes.
const LONGEST_NAME: usize = 32;

/// Measures the path to another machine, and prints or writes the results.
///
/// # Errors
/// Wrong usage; a server that is unreachable or refuses the token; results that cannot be
/// written.
pub fn run(arguments: &MeasureRun) -> anyhow::Result<Exit> {
    let mut run_options = measure_options::run_options(&arguments.measuring)?;
    let asked = measure_options::asked(&arguments.asking, run_options.impact)?;
    run_options.shorten_bursts(&asked);
    remote_paths::check_engines(&asked)?;
    let destination = arguments.output.out.as_deref().map(Destination::check).transpose()?;
    let token = token(arguments.token.as_deref())?;
    let mut targets = vec![(&arguments.name, "ADDR", &arguments.address)];
    if let Some(baseline) = &arguments.baseline {
        if arguments.name == arguments.baseline_name {
            return Err(usage(
                "--name",
                "both paths have the same name: change --name or --baseline-name",
            ));
        }
        targets.insert(0, (&arguments.baseline_name, "--baseline", baseline));
    }
    let family = match (arguments.ipv4, arguments.ipv6) {
        (true, _) => Some(Family::V4),
        (_, true) => Some(Family::V6),
        _ => None,
    };
    let mut addresses = Vec::new();
    for (name, argument, text) in &targets {
        check_name(name)?;
        addresses.push(Target::parse(argument, text)?.resolve_in(argument, family)?);
    }

    let names = targets.iter().map(|(name, ..)| (*name).clone());
    // Before the first file: an interrupted run removes it.
    let stop = interrupt::flag()?;
    let kept = destination.as_ref().map(Kept::beside).transpose()?.flatten();
    let (kept, keeping) = kept.unzip();
    let mut keeping = keeping.unwrap_or_default();
    if let Some(path) = &arguments.output.events {
        keeping.add(events(path)?);
    }
    let paths = names.zip(addresses).collect();
    let request = RemoteRun { asked, run_options, paths, token, keeping };
    let Some(Finished { results, ended }) = request.run(&stop)? else {
        return Ok(Exit::Interrupted);
    };
    deliver(&results, ended, &arguments.output, destination.as_ref(), kept, &ByName::default())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(usage("--name", format!("{name:?}: expected 1 to {LONGEST_NAME} printable bytes")))
}
