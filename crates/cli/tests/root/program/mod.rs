//! Tests of the built program: what it takes, refuses, prints and leaves behind.
//!
//! Each test that measures or counts takes its turn, so that they do not load
//! the machine under one another. Tests that need root or a program say so by
//! name where it is missing.

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
pub mod launch;
pub mod machine;
mod peer;
mod plans;
mod remote;
mod repair;
mod report;
mod run;
pub mod schema;
mod signals;
mod standing;
mod systemd;
mod trace;
mod trial;
mod unprivileged;
mod watch;
