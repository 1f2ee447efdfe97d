//! Tests that need root, each in namespaces of its own.

mod bed;
mod cases;
mod faults;
mod hops;
mod hostile;
mod peer_settings;
mod static_entry;
mod translated;
