//! The hooks that routed packets pass between a tenant and a tunnel, in both directions.

use ruleset::{Hook, Interface, Step};

use crate::model::Port;

/// From a tenant to a tunnel.
pub(super) fn outward(port: &Port, tunnel: &Interface) -> Vec<Step> {
    let bridge = interface(port);
    // br_netfilter tells the rules of the port, for as long as the packet has not left.
    let port_in = port.checked.then(|| port.name.clone());
    steps(&bridge, tunnel, port_in)
}

/// From a tunnel to a tenant.
pub(super) fn inward(port: &Port, tunnel: &Interface) -> Vec<Step> {
    steps(tunnel, &interface(port), None)
}

fn interface(port: &Port) -> Interface {
    let (index, name) = port.domain.clone();
    Interface { index, name }
}

/// ip_rcv, ip_forward, ip_output: the last knows the input device, too (Linux 5.7).
fn steps(input: &Interface, output: &Interface, port_in: Option<String>) -> Vec<Step> {
    let step = |hook, output: Option<&Interface>| Step {
        hook,
        input: Some(input.clone()),
        output: output.cloned(),
        port_in: port_in.clone(),
        port_out: None,
    };
    vec![
        step(Hook::Prerouting, None),
        step(Hook::Forward, Some(output)),
        step(Hook::Postrouting, Some(output)),
    ]
}
