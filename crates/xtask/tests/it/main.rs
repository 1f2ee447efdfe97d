//! Tests that need no privileges.

mod dist;
mod examples;
mod schemas;
mod subjects;
