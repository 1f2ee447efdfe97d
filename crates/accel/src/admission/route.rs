//! The hooks that packets pass between a tenant and a tunnel, in both directions: routed, or
//! over a bridge that br_netfilter has.

use ruleset::{Hook, Interface, Step};

use crate::model::Port;

/// A device with its index.
pub(super) type End<'a> = (u32, &'a Port);

/// Whether packets between a tenant and a tunnel cross the bridge that both are ports of.
pub(super) fn is_bridged(port: &Port, tunnel: &Port) -> bool {
    tunnel.is_bridged() && tunnel.domain == port.domain
}

/// Whether the programs take packets between the two. They take nothing that is routed to a
/// bridge with a VXLAN device.
pub(super) fn are_joined(port: &Port, tunnel: &Port) -> bool {
    !tunnel.is_bridged() || is_bridged(port, tunnel)
}

/// From a tenant to a tunnel.
pub(super) fn outward(port: &Port, tunnel: &Port) -> Vec<Step> {
    if is_bridged(port, tunnel) {
        return bridged(port, tunnel);
    }
    // br_netfilter tells the rules of the port, for as long as the packet has not left.
    let port_in = port.checked.then(|| port.name.clone());
    routed(port, tunnel, port_in)
}

/// From a tunnel to a tenant.
pub(super) fn inward(port: &Port, tunnel: &Port) -> Vec<Step> {
    if is_bridged(port, tunnel) { bridged(tunnel, port) } else { routed(tunnel, port, None) }
}

/// Where rules see a port's packets.
fn interface(port: &Port) -> Interface {
    let (index, name) = port.domain.clone();
    Interface { index, name }
}

/// ip_rcv, ip_forward, ip_output: the last knows the input device, too (Linux 5.7).
fn routed(input: &Port, output: &Port, port_in: Option<String>) -> Vec<Step> {
    let (input, output) = (interface(input), interface(output));
    let step = |hook, output: Option<&Interface>| Step {
        hook,
        input: Some(input.clone()),
        output: output.cloned(),
        port_in: port_in.clone(),
        port_out: None,
    };
    vec![
        step(Hook::Prerouting, None),
        step(Hook::Forward, Some(&output)),
        step(Hook::Postrouting, Some(&output)),
    ]
}

/// br_nf_pre_routing, br_nf_forward, br_nf_post_routing of net/bridge/br_netfilter_hooks.c: the
/// rules see the bridge as device, and both ports once the output is known. The last step is
/// told of no input device.
fn bridged(input: &Port, output: &Port) -> Vec<Step> {
    let bridge = interface(input);
    let step = |hook, is_in: bool, is_out: bool| Step {
        hook,
        input: is_in.then(|| bridge.clone()),
        output: is_out.then(|| bridge.clone()),
        port_in: Some(input.name.clone()),
        port_out: is_out.then(|| output.name.clone()),
    };
    vec![
        step(Hook::Prerouting, true, false),
        step(Hook::Forward, true, true),
        step(Hook::Postrouting, false, true),
    ]
}
