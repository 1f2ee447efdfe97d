//! Tests that need no rights.

mod dist;
mod examples;
mod schemas;
mod subjects;
