//! The journal with a full disk, a kill at any step, damaged and foreign files, and replaced
//! namespaces and devices.

mod bench;
mod disk;
mod files;
mod identity;
mod steps;
