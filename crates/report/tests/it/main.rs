//! Tests that need no privileges.

mod compare;
mod example;
mod golden;
mod large;
mod page;
mod readme;
mod report;
