//! The journal against a full disk, a kill at any step, damaged and foreign files, and
//! namespaces and devices that took the place of others.

mod bench;
mod disk;
mod files;
mod identity;
mod steps;
