//! Hooks of rules that a packet may have passed before it was dropped.

use netstate::interface::Interface;
use ruleset::{Hook, Step};

/// Hooks of a frame that crosses a bridge.
pub fn bridged(bridge: &Interface, came_by: Option<&Interface>, at: &Interface) -> Vec<Step> {
    let mut path = Vec::new();
    if let Some(input) = came_by {
        path.push(step(Hook::BridgePrerouting, Some(input), None));
        path.push(step(Hook::BridgeForward, Some(input), Some(at)));
    }
    let of_bridge = [Hook::Prerouting, Hook::Forward, Hook::Postrouting].map(|hook| Step {
        port_in: came_by.map(|input| input.name.clone()),
        port_out: (hook != Hook::Prerouting).then(|| at.name.clone()),
        ..step(
            hook,
            (hook != Hook::Postrouting).then_some(bridge),
            (hook != Hook::Prerouting).then_some(bridge),
        )
    });
    path.extend(of_bridge);
    path
}

/// Returns a hook with its devices.
pub fn step(hook: Hook, input: Option<&Interface>, output: Option<&Interface>) -> Step {
    let named = |link: Option<&Interface>| {
        link.map(|link| ruleset::Interface { index: link.index, name: link.name.clone() })
    };
    Step { hook, input: named(input), output: named(output), port_in: None, port_out: None }
}
