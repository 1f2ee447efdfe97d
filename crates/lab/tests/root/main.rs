//! Tests that need root, each in namespaces of its own.

mod accel;
mod bgp;
mod evpn;
mod flannel;
mod guest;
mod k8s;
mod modes;
mod network_node;
mod ovs;
#[path = "../guest/qemu.rs"]
#[allow(dead_code, reason = "tests of other crates use the rest")]
mod qemu;
mod service_update;
mod swarm;
mod traffic;
