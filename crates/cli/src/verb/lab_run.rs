//! `overlane lab run`: checks the arguments, runs the session, and prints or writes the results.

use std::ffi::OsString;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use lab::{Mode, at_guest, groups, modes};
use session::fault_runs;
use session::finished::Finished;
use session::keeping::Keeping;
use session::lab_run::LabRun;
use session::request::Asked;
use session::variation::{Varied, tried, varied};
use testbed::Offload;

use crate::args::{Asking, Output, Placement, Run, Steering};
use crate::by_name::ByName;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::measure_options::{self, list};
use crate::output::{Destination, Kept, deliver, events};
use crate::plan::{self, PlanFile};
use crate::quantity::alternatives;

/// Datagram size that every IPv4 host must accept (RFC 791); leaves room for a tunnel.
const SMALLEST_MTU: u32 = 576;
const LARGEST_MTU: u32 = 65535;

/// Checked arguments of `lab run`.
pub(super) struct CheckedRun {
    pub(super) request: LabRun,
    destination: Option<Destination>,
    kept: Option<Kept>,
    by_name: ByName,
}

/// Measures modes outside of guests, and prints or writes the results.
///
/// # Errors
/// Wrong usage; a baseline that cannot be built; results that cannot be written. Any other mode
/// that cannot be built or measured is in the results and sets the exit code.
pub fn run(arguments: &Run) -> anyhow::Result<Exit> {
    // Before the first file: an interrupted run removes it.
    let stop = interrupt::flag()?;
    let Some(name) = &arguments.plan else {
        let checked = CheckedRun::check(arguments, std::slice::from_ref(&arguments.asking))?;
        return checked.run(&arguments.output, &stop);
    };
    let (checked, planned) = planned(name, &given(), arguments.measuring.quick)?;
    checked.run(&planned.output, &stop)
}

fn planned(name: &str, words: &[OsString], quick: bool) -> anyhow::Result<(CheckedRun, Run)> {
    let plan = PlanFile::find(name)?;
    let planned = plan.with(words, quick)?;
    let checked = CheckedRun::check(&planned.run, &planned.parts);
    let mut checked = checked.with_context(|| format!("plan {}", plan.name))?;
    checked.request.plan = Some(plan.name);
    checked.by_name = ByName::default();
    Ok((checked, planned.run))
}

/// Returns the words after `lab run` on the command line, without `--plan`.
pub(super) fn given() -> Vec<OsString> {
    let mut words = std::env::args_os().skip_while(|word| word != "run").skip(1);
    let mut given = Vec::new();
    while let Some(word) = words.next() {
        if word == "--plan" {
            words.next();
        } else if !word.to_string_lossy().starts_with("--plan=") {
            given.push(word);
        }
    }
    given
}

/// Returns the modes of `all` or of a group. `None` for any other name.
pub fn named(name: &str) -> Option<Vec<&'static dyn Mode>> {
    if name == "all" {
        return Some(modes().iter().copied().filter(|mode| mode.in_all()).collect());
    }
    groups().iter().find(|group| group.name == name).map(|group| group.modes.to_vec())
}

impl CheckedRun {
    fn run(self, output: &Output, stop: &Arc<AtomicBool>) -> anyhow::Result<Exit> {
        let Finished { results, ended } = self.request.run(stop)?;
        let destination = self.destination.as_ref();
        deliver(&results, ended, output, destination, self.kept, &self.by_name)
    }

    /// Checks command-line words that did not come from this process's command line, merged with
    /// a plan if there is one.
    ///
    /// # Errors
    /// Wrong usage.
    pub(super) fn of_words(
        plan: Option<&str>,
        words: &[OsString],
        quick: bool,
    ) -> anyhow::Result<CheckedRun> {
        if let Some(name) = plan {
            return Ok(planned(name, words, quick)?.0);
        }
        let run = plan::arguments(words)?;
        CheckedRun::check(&run, std::slice::from_ref(&run.asking))
    }

    /// Checks the arguments. `asking` has the workload options of each part.
    fn check(arguments: &Run, asking: &[Asking]) -> anyhow::Result<CheckedRun> {
        let all: Vec<&str> = modes().iter().map(|mode| mode.name()).collect();
        let find = |argument, name: &str| {
            // `lab_run_guest` handles them if --modes names them.
            if name == at_guest::GROUP || name.contains('@') {
                // A plan with such modes would need a guest kernel, which is a file of this
                // machine.
                let problem =
                    format!("{name:?}: modes …@guest are not allowed in a plan; use --modes");
                return Err(usage(argument, problem));
            }
            lab::find(name).ok_or_else(|| {
                let mut named: Vec<&str> = Vec::new();
                if argument == "--modes" {
                    named.push("all");
                    named.extend(groups().iter().map(|group| group.name));
                    named.push(at_guest::GROUP);
                }
                let known = all.iter().chain(&named).copied();
                let others = alternatives(name, known, "overlane lab list");
                usage(argument, format!("unknown mode {name:?}{others}"))
            })
        };
        if let Some(image) = &arguments.guest_kernel {
            let kernel = lab::guest::Kernel::open(image);
            lab::guest::use_kernel(kernel.map_err(|error| usage("--guest-kernel", error))?);
        }
        let baseline = find("--baseline", &arguments.baseline)?;
        let named = list("--modes", &arguments.modes, |name| match named(name) {
            Some(modes) => Ok(modes),
            None => find("--modes", name).map(|mode| vec![mode]),
        })?;
        let mut chosen: Vec<&'static dyn Mode> = Vec::new();
        for mode in named.into_iter().flatten() {
            // Drop duplicates: groups overlap with each other and with `all`.
            if chosen.iter().all(|other| other.name() != mode.name()) {
                chosen.push(mode);
            }
        }
        // The baseline is always part of the run, and comes first.
        chosen.retain(|mode| mode.name() != baseline.name());
        chosen.insert(0, baseline);
        fault_runs::check(arguments.faults, &chosen)?;
        // --try compares under one profile by default.
        let usual = if arguments.tries.is_empty() { "full,none" } else { "full" };
        let offload = arguments.offload.as_deref().unwrap_or(usual);
        let offloads = list("--offload", offload, |name| {
            Offload::from_str(name).map_err(|error| usage("--offload", error))
        })?;
        let mtus = list("--mtu", &arguments.mtu, check_mtu)?;
        if arguments.steering == Some(Steering::Rss)
            && arguments.measuring.placement() == Placement::None
        {
            return Err(usage("--steering", "rss needs pinned threads: not with --placement none"));
        }
        let mut run_options = measure_options::run_options(&arguments.measuring)?;
        let mut asked = Asked::default();
        for part in asking {
            asked.join(measure_options::asked(part, run_options.impact)?);
        }
        run_options.shorten_bursts(&asked);
        let mut vary: Vec<String> =
            arguments.vary.iter().chain(&arguments.tries).cloned().collect();
        let mut settings = Vec::new();
        for text in &arguments.vary {
            for setting in varied(text)? {
                // The same cells twice: a mistyped value.
                if settings.contains(&setting) {
                    return Err(usage("--vary", format!("{setting} is listed twice")));
                }
                settings.push(setting);
            }
        }
        for text in &arguments.tries {
            settings.push(tried(text)?);
        }
        if arguments.ipv4 && arguments.ipv6 && !settings.contains(&Varied::Ipv6) {
            settings.push(Varied::Ipv6);
            vary.push(Varied::Ipv6.to_string());
        }
        let ipv6 = arguments.ipv6 && !arguments.ipv4;
        // The setting would be compared with itself.
        if ipv6 && settings.contains(&Varied::Ipv6) {
            return Err(usage("-6", "not with --vary ip=6, which compares with IPv4"));
        }
        if ipv6 && arguments.faults > 0 {
            return Err(usage("-6", "not with --faults: its datagrams use IPv4"));
        }
        let steering = match (arguments.steering, arguments.measuring.placement()) {
            (Some(steering), _) => steering,
            (None, Placement::None) => Steering::None,
            (None, _) => Steering::Rss,
        };
        let mut request = LabRun {
            modes: chosen,
            baseline,
            asked,
            vary,
            settings,
            plan: None,
            faults: arguments.faults,
            ipv6,
            probe: !arguments.no_probe,
            run_options,
            offloads,
            mtus,
            steering: steering.into(),
            steering_given: arguments.steering.is_some(),
            keeping: Keeping::default(),
        };
        let destination = arguments.output.out.as_deref().map(Destination::check).transpose()?;
        let mut kept = None;
        if let Some(destination) = &destination
            && let Some((file, keeping)) = Kept::beside(destination)?
        {
            (kept, request.keeping) = (Some(file), keeping);
        }
        if let Some(path) = &arguments.output.events {
            request.keeping.add(events(path)?);
        }
        let by_name = ByName::of(&arguments.modes, false);
        Ok(CheckedRun { request, destination, kept, by_name })
    }
}

pub(super) fn check_mtu(text: &str) -> anyhow::Result<u32> {
    text.parse().ok().filter(|mtu| (SMALLEST_MTU..=LARGEST_MTU).contains(mtu)).ok_or_else(|| {
        usage("--mtu", format!("{text:?}: expected {SMALLEST_MTU} to {LARGEST_MTU} bytes"))
    })
}
