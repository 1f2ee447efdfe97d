//! Tests that need root, each in namespaces of its own.

#[path = "../../../packet/tests/it/build/mod.rs"]
mod build;
mod coalescing_vs_kernel;
mod segmentation_vs_kernel;
mod tapbridge;
mod traffic;
mod vtep;
mod vtep_allocations;
mod vxlan_vs_kernel;
