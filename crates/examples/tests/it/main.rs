//! Tests that need no rights.

mod accel;
mod api;
mod kubernetes;
