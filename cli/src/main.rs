//! `overlane`: arguments in, exit code out. One file per verb.
//!
//! Exit codes: 0 done, 1 failed (in whole or in part), 2 wrong usage or bad
//! input, 10 a proven regression exceeds its limit (`report compare`), findings at or
//! above `--fail-on` (`doctor`) or a change not proven better (`try`), 130 ended by Ctrl-C (with what there is written).

#![forbid(unsafe_code)]

mod accelerator;
mod args;
mod away;
mod background;
mod building;
mod confinement;
mod control;
mod doctor_args;
mod endpoint;
mod exit;
mod foreground;
mod holder;
mod interrupt;
mod load;
mod metrics;
mod notify;
mod output;
mod plan;
mod progress;
mod remote;
mod sizes;
mod trial_guard;
mod try_args;
mod unmeasured;
mod variation;
mod verb;
mod vtep_args;
mod watching;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{AccelVerb, Arguments, LabVerb, MeasureVerb, Verb};
use exit::Exit;
use vtep_args::VtepVerb;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("OVERLANE_LOG")
                .unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && output::colour_is_wanted())
        .init();
    let mut command = Arguments::command();
    let arguments = match command.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => Arguments::from_arg_matches(&matches),
        Err(error) => Err(error),
    };
    let arguments = match arguments {
        Ok(arguments) => arguments,
        // clap exits with 2 for errors, 0 for --help and --version.
        Err(error) => error.exit(),
    };
    exit::report(dispatch(arguments))
}

fn dispatch(arguments: Arguments) -> anyhow::Result<Exit> {
    match arguments.verb {
        Verb::Lab { verb } => match verb {
            LabVerb::List(list) => verb::lab_list::run(&list),
            LabVerb::Run(run) => verb::lab_run::run(&run),
            LabVerb::Plans(plans) => verb::lab_plans::run(&plans),
            LabVerb::Up(up) => verb::lab_up::run(&up),
            LabVerb::Hold(hold) => verb::lab_up::hold(&hold),
            LabVerb::Exec(exec) => verb::lab_exec::run(&exec),
            LabVerb::Status(status) => verb::lab_status::run(&status),
            LabVerb::Down(down) => verb::lab_down::run(&down),
        },
        Verb::Measure { verb } => match verb {
            MeasureVerb::Serve(serve) => verb::measure_serve::run(&serve),
            MeasureVerb::Run(run) => verb::measure_run::run(&run),
        },
        Verb::Accel { verb } => match verb {
            AccelVerb::On(run) => verb::accel::on(&run),
            AccelVerb::Off(devices) => verb::accel::off(&devices),
            AccelVerb::Run(run) => verb::accel::run(&run),
            AccelVerb::Status(status) => verb::accel::status(&status),
        },
        Verb::Doctor(doctor) => verb::doctor::run(&doctor),
        Verb::Try(asked) => verb::r#try::run(&asked),
        Verb::Undo(undo) => verb::undo::run(&undo),
        Verb::Report(report) => verb::report::run(&report),
        Verb::Tapbridge(bridge) => verb::tapbridge::run(&bridge),
        Verb::Vtep(vtep) => match &vtep.verb {
            Some(VtepVerb::Status(status)) => verb::vtep_status::run(status),
            None => verb::vtep::run(&vtep),
        },
        Verb::Completions { shell } => verb::generate::completions(shell),
        Verb::Man { directory } => verb::generate::man(&directory),
    }
}
