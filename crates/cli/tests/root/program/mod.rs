//! Tests of the built program: its arguments, refusals, output and clean-up.
//!
//! Tests that need root or a program report its absence by name.

mod accel;
mod bad_input;
mod busy;
mod doctor;
mod engines;
mod fault_trials;
mod faults;
mod generated;
mod journal;
mod kill;
#[path = "../../common/launch.rs"]
pub mod launch;
pub mod machine;
mod narrow;
mod peer;
mod plans;
mod probe;
mod probe_docker;
mod remote;
mod repair;
mod run;
#[path = "../../common/schema.rs"]
pub mod schema;
mod signals;
mod standing;
mod systemd;
mod tour;
mod trace;
mod trial;
mod unprivileged;
mod watch;
