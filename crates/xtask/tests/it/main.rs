//! Tests that need no rights.

mod examples;
mod schemas;
mod subjects;
