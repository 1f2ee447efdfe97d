//! Tests of the built program: what it takes, refuses, prints and leaves behind.
//!
//! Each test that measures or counts takes its turn, so that they do not load
//! the machine under one another. Tests that need root or a program say so by
//! name where it is missing.

mod bad_input;
mod doctor;
mod engines;
mod faults;
mod generated;
mod kill;
mod launch;
mod machine;
mod plans;
mod remote;
mod repair;
mod report;
mod run;
mod schema;
mod signals;
mod standing;
mod systemd;
mod trial;
mod unprivileged;
