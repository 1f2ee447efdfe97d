//! Thresholds of each check: saved hosts with one change at a time. Tested without root, on any
//! machine.

mod devices;
mod far_end;
mod field;
mod guards;
mod machine;
mod mtu;
mod paths;
mod programs;
mod rules;
mod saved;
mod tenants;
mod tunnels;

use std::net::IpAddr;

use doctor::host::{Chain, Feature, Host};
use saved::{device, read};

/// An address that no saved host has.
fn elsewhere() -> IpAddr {
    "10.0.0.99".parse().unwrap()
}

fn chain(family: &str, table: &str) -> Chain {
    Chain { family: family.into(), table: table.into(), chain: "POSTROUTING".into() }
}

fn feature(host: &mut Host, label: &str, name: &str, feature: &str, state: Feature) {
    let features = device(host, label, name).features.as_mut().unwrap();
    read(features).insert(feature.into(), state);
}
