//! Tests that need no rights.

mod compare;
mod example;
mod golden;
mod large;
mod page;
mod readme;
mod report;
