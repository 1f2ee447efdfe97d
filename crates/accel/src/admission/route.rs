//! The hooks that packets pass between a tenant and a tunnel, in both directions: routed, or across
//! a bridge with br_netfilter.

use ruleset::{Hook, Interface, Step};

use crate::model::Port;

/// A device with its interface index.
pub(super) type End<'a> = (u32, &'a Port);

/// Whether the tenant and the tunnel are ports of the same bridge.
pub(super) fn is_bridged(port: &Port, tunnel: &Port) -> bool {
    tunnel.is_bridged() && tunnel.domain == port.domain
}

/// Whether the programs accelerate packets between the two. They do not accelerate packets routed
/// to a bridge with a VXLAN device.
pub(super) fn are_joined(port: &Port, tunnel: &Port) -> bool {
    !tunnel.is_bridged() || is_bridged(port, tunnel)
}

/// Hooks from a tenant to a tunnel.
pub(super) fn outward(port: &Port, tunnel: &Port) -> Vec<Step> {
    if is_bridged(port, tunnel) {
        return bridged(port, tunnel);
    }
    // br_netfilter reports the input port to the rules until the packet leaves.
    let port_in = port.checked.then(|| port.name.clone());
    routed(port, tunnel, port_in)
}

/// Hooks from a tunnel to a tenant.
pub(super) fn inward(port: &Port, tunnel: &Port) -> Vec<Step> {
    if is_bridged(port, tunnel) { bridged(tunnel, port) } else { routed(tunnel, port, None) }
}

/// The device that rules see for a port's packets.
fn interface(port: &Port) -> Interface {
    let (index, name) = port.domain.clone();
    Interface { index, name }
}

/// Hooks of `ip_rcv`, `ip_forward` and `ip_output`. The last also knows the input device (Linux
/// 5.7).
fn routed(input: &Port, output: &Port, port_in: Option<String>) -> Vec<Step> {
    let (input, output) = (interface(input), interface(output));
    let step = |hook, output: Option<&Interface>| Step {
        hook,
        input: Some(input.clone()),
        output: output.cloned(),
        port_in: port_in.clone(),
        port_out: None,
        hardware_source: None,
    };
    vec![
        step(Hook::Prerouting, None),
        step(Hook::Forward, Some(&output)),
        step(Hook::Postrouting, Some(&output)),
    ]
}

/// Hooks of `br_nf_pre_routing`, `br_nf_forward` and `br_nf_post_routing`
/// (net/bridge/br_netfilter_hooks.c). Rules see the bridge as the device, and both ports once the
/// output is known. The last hook has no input device.
fn bridged(input: &Port, output: &Port) -> Vec<Step> {
    let bridge = interface(input);
    let step = |hook, is_in: bool, is_out: bool| Step {
        hook,
        input: is_in.then(|| bridge.clone()),
        output: is_out.then(|| bridge.clone()),
        port_in: Some(input.name.clone()),
        port_out: is_out.then(|| output.name.clone()),
        hardware_source: None,
    };
    vec![
        step(Hook::Prerouting, true, false),
        step(Hook::Forward, true, true),
        step(Hook::Postrouting, false, true),
    ]
}
