//! `overlane`: parses the arguments, runs a verb, and returns an exit code. One file per verb.
//!
//! Exit codes:
//!
//! - 0: done;
//! - 1: failed, in whole or in part;
//! - 2: wrong usage or bad input;
//! - 10: a proven regression exceeds its limit (`report compare`), findings are at or above
//!   `--fail-on` (`doctor`), a path damages or loses packets (`probe`, `accel on --probe`), or a change is not proven better (`try`);
//! - 130: ended by Ctrl-C, partial results were written.

#![forbid(unsafe_code)]

mod accel_args;
mod accel_events;
mod args;
mod bridge_end;
mod by_name;
mod capture_file;
mod command_line;
mod completion;
mod doctor_args;
#[cfg(test)]
mod documents;
mod drop_cause;
mod exit;
mod help;
mod host_reading;
mod input;
#[cfg(test)]
mod interface;
mod interrupt;
mod lab_socket;
mod management;
mod measure_options;
mod named_netns;
mod new_file;
mod output;
mod packet_filter;
mod plan;
mod probe_args;
mod probe_record;
mod quantity;
mod recording;
mod remote;
mod report_args;
mod screen;
mod settings_process;
mod sizes;
mod tap_device;
mod tapbridge_args;
mod trace_args;
mod trial_guard;
mod try_args;
mod verb;
mod vtep_args;
mod watch_args;
mod watch_peer;

use std::io::{ErrorKind, IsTerminal};
use std::process::ExitCode;

use clap::FromArgMatches;

use accel_args::AccelVerb;
use args::{LabVerb, MeasureVerb};
use command_line::{Arguments, Verb};
use exit::{Exit, Usage};
use vtep_args::VtepVerb;

fn main() -> ExitCode {
    completion::answer_request();
    let colour = std::io::stderr().is_terminal() && output::colour_is_wanted();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("OVERLANE_LOG")
                .unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(move || output::Log { colour })
        .with_ansi(colour)
        .init();
    // A new user's first command shows more than a list of verbs.
    if std::env::args_os().len() == 1 {
        return exit_code(verb::overview::run());
    }
    let mut command = command_line::command();
    let arguments = match command.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => Arguments::from_arg_matches(&matches),
        Err(error) => Err(error),
    };
    let arguments = match arguments {
        Ok(arguments) => arguments,
        // clap exits with 2 for errors, 0 for --help and --version.
        Err(error) => help::with_example(error, &command).exit(),
    };
    // Each namespace of a node and each flow needs a descriptor.
    sys::limit::raise_descriptors();
    exit_code(dispatch(arguments))
}

fn dispatch(arguments: Arguments) -> anyhow::Result<Exit> {
    match arguments.verb {
        Verb::Lab { verb } => match verb {
            LabVerb::List(list) => verb::lab_list::run(&list),
            LabVerb::Kernels(kernels) => verb::lab_kernels::run(&kernels),
            LabVerb::Run(run) => match verb::lab_run_guest::asked(&run)? {
                Some(modes) => verb::lab_run_guest::run(&run, &modes),
                None => verb::lab_run::run(&run),
            },
            LabVerb::Plans(plans) => verb::lab_plans::run(&plans),
            LabVerb::Up(up) => verb::lab_up::run(&up),
            LabVerb::Guest(guest) => verb::lab_guest::run(&guest),
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
            AccelVerb::On(on) => verb::accel_probe::on(&on),
            AccelVerb::Off(devices) => verb::accel::off(&devices),
            AccelVerb::Run(run) => verb::accel_run::run(&run),
            AccelVerb::Status(status) => verb::accel::status(&status),
            AccelVerb::Check(check) => verb::accel_check::run(&check),
            AccelVerb::Explain(explain) => verb::accel_explain::run(&explain),
        },
        Verb::Doctor(doctor) => verb::doctor::run(&doctor),
        Verb::Probe(asked) => verb::probe::run(&asked),
        Verb::Try(asked) => verb::r#try::run(&asked),
        Verb::Undo(undo) => verb::undo::run(&undo),
        Verb::Watch(watch) => verb::watch::run(&watch),
        Verb::Trace(trace) => verb::trace::run(&trace),
        Verb::Report(report) => verb::report::run(&report),
        Verb::Tapbridge(bridge) => verb::tapbridge::run(&bridge),
        Verb::Vtep(vtep) => match &vtep.verb {
            Some(VtepVerb::Status(status)) => verb::vtep_status::run(status),
            None => verb::vtep::run(&vtep),
        },
        Verb::Tour(tour) => verb::tour::run(&tour),
        Verb::Completions { shell } => verb::generate::completions(shell),
        Verb::Man { directory } => verb::generate::man(&directory),
    }
}

/// Prints the error of a verb and returns the exit code of the process.
fn exit_code(result: anyhow::Result<Exit>) -> ExitCode {
    match result {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Partly) => ExitCode::FAILURE,
        Ok(Exit::Interrupted) => ExitCode::from(130),
        Ok(Exit::Code(code)) => ExitCode::from(code),
        // The reader has seen enough, so this is no failure.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("error: {error:#}"));
            // Wrong usage and bad input have exit code 2, like clap's own errors.
            if error.downcast_ref::<Usage>().is_some() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Returns whether the reader of the output has closed the pipe (`overlane … | head`).
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
