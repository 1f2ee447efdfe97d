//! OV075: A bridge port does not pass frames as the path needs.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::host::Translations;
use crate::view::sent_packets;
use netstate::MacAddr;
use netstate::interface::{Port, PortState};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV075",
    title: "A bridge port does not pass frames",
    severity: Severity::Error,
    explanation: "A port of a bridge does not forward all frames. Its state is not forwarding \
        (spanning tree, or set by hand), it is locked, it is isolated like the ports that it has to \
        reach, or it gets no broadcast, no multicast or no frames to unknown addresses. A tenant \
        does not reach itself by a service unless its port returns frames (hairpin). Or hairpin \
        mode returns a guest's broadcasts: the bridge on the guest's side then learns the guest's \
        address at its uplink, and drops frames for the guest until the guest sends again.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for port in view.devices() {
        let (Some(bridge), Some(settings)) = (view.bridge(port), port.interface.port) else {
            continue;
        };
        // OV051 reports ports and bridges that are down.
        if !port.interface.up || !port.interface.carrier || !bridge.interface.up {
            continue;
        }
        // The bridge enables the port in a moment.
        if port.interface.carrier_is_new {
            continue;
        }
        state(outcome, port, bridge, settings);
        reflects(view, outcome, port, bridge, settings);
        own_service(view, outcome, port, bridge, settings);
        isolated(view, outcome, port, bridge, settings);
        held_back(view, outcome, port, bridge, settings);
        locked(view, outcome, port, bridge, settings);
    }
}

/// A command that sets a flag of a port, and its inverse.
fn flag(port: DeviceRef<'_>, name: &str, on: bool) -> (String, String) {
    let set = |on| {
        let word = if on { "on" } else { "off" };
        let command = format!("bridge link set dev {} {name} {word}", quote(port.name()));
        inside(port.namespace.path.as_deref(), &command)
    };
    (set(on), set(!on))
}

fn state(outcome: &mut CheckOutcome, port: DeviceRef<'_>, bridge: DeviceRef<'_>, settings: Port) {
    let by_protocol = bridge.interface.bridge.is_some_and(|bridge| bridge.stp);
    let severity = match settings.state {
        PortState::Forwarding => return,
        // The protocol closes a loop on purpose.
        PortState::Blocking if by_protocol => Severity::Info,
        // It takes two times forward_delay, 30 s by default.
        PortState::Listening | PortState::Learning if by_protocol => Severity::Warn,
        _ => Severity::Error,
    };
    let name = settings.state.name();
    let finding = CHECK
        .on(port)
        .severity(severity)
        .evidence(format!("state of the port of {}: {name}", bridge.name()), "IFLA_BRPORT_STATE")
        .evidence(
            format!("spanning tree protocol: {}", if by_protocol { "on" } else { "off" }),
            "IFLA_BR_STP_STATE",
        )
        .cost(Cost::estimated(
            if severity == Severity::Info { 0.05 } else { 1.0 },
            "all frames of this port",
        ));
    // The protocol would set it again.
    if by_protocol {
        outcome.add(finding);
        return;
    }
    let number = match settings.state {
        PortState::Disabled => 0,
        PortState::Listening => 1,
        PortState::Learning => 2,
        PortState::Forwarding => 3,
        PortState::Blocking => 4,
    };
    let set = |state| {
        let command = format!("bridge link set dev {} state {state}", quote(port.name()));
        inside(port.namespace.path.as_deref(), &command)
    };
    outcome.add(finding.by_hand(set(3), "it may close a loop", set(number)));
}

/// Hairpin towards another bridge.
fn reflects(
    view: &View<'_>,
    outcome: &mut CheckOutcome,
    port: DeviceRef<'_>,
    bridge: DeviceRef<'_>,
    settings: Port,
) {
    if !settings.hairpin {
        return;
    }
    // A tenant ignores its own broadcasts; a bridge learns from them.
    let Some(peer) = view.peer(port) else { return };
    let Some(beside) = view.bridge(peer) else { return };
    let learned = |on: DeviceRef<'_>, of: DeviceRef<'_>| -> Vec<MacAddr> {
        let all = on.namespace.fdb.get().into_iter().flatten();
        let own = all.filter(|entry| {
            entry.link == on.interface.index
                && entry.bridge == Some(of.interface.index)
                && !entry.fixed
        });
        own.filter_map(|entry| entry.mac).collect()
    };
    let outside = learned(port, bridge);
    let inside = learned(peer, beside);
    let both = inside.iter().find(|mac| outside.contains(mac));
    let mut finding = CHECK
        .on(port)
        .evidence(
            format!(
                "hairpin on; its peer {} {} is a port of {}",
                peer.namespace.label,
                peer.name(),
                beside.name()
            ),
            "IFLA_BRPORT_MODE",
        )
        .cost(Cost::estimated(0.9, "packets to the guests behind it"))
        .confidence(Confidence::Medium);
    if let Some(mac) = both {
        finding = finding
            .evidence(
                format!(
                    "{} has learned {mac} at {}, and {} at {}: each forwards its frames to the \
                     other",
                    beside.name(),
                    peer.name(),
                    bridge.name(),
                    port.name()
                ),
                "RTM_GETNEIGH",
            )
            .confidence(Confidence::High);
    }
    let (command, undo) = flag(port, "hairpin", false);
    outcome.add(finding.by_hand(
        command,
        "a tenant no longer reaches itself by the address of a service",
        undo,
    ));
}

/// Two isolated ports that have to reach each other.
/// Connections of a tenant to a service that leads back to the tenant itself, while the port returns
/// no frames.
fn own_service<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    port: DeviceRef<'a>,
    bridge: DeviceRef<'a>,
    settings: Port,
) {
    // With a bridge in promiscuous mode the host's own rules return them.
    let Some(all) = port.namespace.translations.get().filter(|_| !settings.hairpin) else { return };
    let to_itself = all.stalled.iter().flatten().filter(|one| one.from == one.now);
    for one in to_itself {
        let is_tenant = match view.peer(port) {
            Some(tenant) => tenant.addresses().any(|known| known.address == one.now),
            // By the bridge's own entries, if the tenant was not read.
            None => is_behind(port, bridge, one.now),
        };
        if !is_tenant {
            continue;
        }
        let (command, undo) = flag(port, "hairpin", true);
        let (service, number) = one.to;
        outcome.add(
            CHECK
                .on(port)
                .severity(Severity::Warn)
                .evidence(
                    format!(
                        "hairpin off: frames of {} for {service} port {number}, which leads to {}, \
                         would have to leave by the port they came from",
                        one.from, one.now
                    ),
                    "IFLA_BRPORT_MODE, IPCTNL_MSG_CT_GET",
                )
                .cost(Cost::estimated(0.5, "connections of this tenant to its own service"))
                .by_hand(command, "the tenant gets its own broadcasts back", undo),
        );
        // One connection proves it.
        return;
    }
    by_rules(view, outcome, port, bridge, all);
}

/// The same without a tracked connection: with br_netfilter the frame is lost before it is tracked. A
/// tenant to which a rule leads sends, and gets nothing.
fn by_rules<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    port: DeviceRef<'a>,
    bridge: DeviceRef<'a>,
    all: &Translations,
) {
    let is_silent = port.moved().is_some_and(|moved| moved.rx_packets > 0 && moved.tx_packets == 0);
    let sends = |tenant: DeviceRef<'_>| sent_packets(tenant.namespace) == Some(true);
    // A tenant that sends nothing asks no service.
    if !is_silent || view.peer(port).is_some_and(|tenant| !sends(tenant)) {
        return;
    }
    let rule = all.rules.iter().find(|rule| match view.peer(port) {
        Some(tenant) => tenant.addresses().any(|known| known.address == rule.to),
        None => is_behind(port, bridge, rule.to),
    });
    let Some(rule) = rule else { return };
    let (command, undo) = flag(port, "hairpin", true);
    outcome.add(
        CHECK
            .on(port)
            .severity(Severity::Info)
            .evidence(
                format!(
                    "hairpin off; {} {} {} leads to {} behind it, which sends and gets nothing: it \
                     may ask its own service",
                    rule.family, rule.table, rule.chain, rule.to
                ),
                "IFLA_BRPORT_MODE, NFT_MSG_GETRULE, IFLA_STATS64",
            )
            .cost(Cost::estimated(0.29, "connections of this tenant to its own service"))
            .confidence(Confidence::Low)
            .by_hand(command, "the tenant gets its own broadcasts back", undo),
    );
}

/// Whether the bridge knows an address behind a port.
fn is_behind(port: DeviceRef<'_>, bridge: DeviceRef<'_>, address: std::net::IpAddr) -> bool {
    let mut known = port.namespace.neighbours.get().into_iter().flatten();
    let of_bridge = known
        .find(|known| known.link == bridge.interface.index && known.address == address)
        .and_then(|known| known.mac);
    let mut entries = port.namespace.fdb.get().into_iter().flatten();
    of_bridge.is_some()
        && entries.any(|entry| {
            entry.link == port.interface.index
                && entry.bridge == Some(bridge.interface.index)
                && entry.mac == of_bridge
        })
}

fn isolated(
    view: &View<'_>,
    outcome: &mut CheckOutcome,
    port: DeviceRef<'_>,
    bridge: DeviceRef<'_>,
    settings: Port,
) {
    // Tenants may be isolated from each other on purpose; a tunnel or NIC is their way out.
    if !settings.isolated || !is_uplink(port) {
        return;
    }
    let others = view.ports(bridge).filter(|other| other.place != port.place);
    let cut: Vec<&str> = others
        .filter(|other| other.interface.port.is_some_and(|other| other.isolated))
        .map(|other| other.name())
        .collect();
    // Isolated ports exchange frames with all others: alone it cuts nothing off.
    if cut.is_empty() {
        return;
    }
    let (command, undo) = flag(port, "isolated", false);
    outcome.add(
        CHECK
            .on(port)
            .evidence(
                format!("isolated, like {}: they exchange no frames", cut.join(", ")),
                "IFLA_BRPORT_ISOLATED",
            )
            .cost(Cost::estimated(1.0, "frames between these ports"))
            .by_hand(command, "tenants reach other hosts", undo),
    );
}

/// Whether a port leads to other hosts.
pub(super) fn is_uplink(port: DeviceRef<'_>) -> bool {
    port.vxlan().is_some() || port.is_physical()
}

/// A port that drops frames from addresses without an entry (`bridge link set … locked on`).
fn locked(
    view: &View<'_>,
    outcome: &mut CheckOutcome,
    port: DeviceRef<'_>,
    bridge: DeviceRef<'_>,
    settings: Port,
) {
    if !settings.locked {
        return;
    }
    // Addresses behind other ports are unknown.
    let Some(tenant) = view.peer(port) else { return };
    let (Some(mac), Some(fdb)) = (tenant.interface.mac, port.namespace.fdb.get()) else { return };
    let is_known = fdb.iter().any(|entry| {
        entry.link == port.interface.index
            && entry.bridge == Some(bridge.interface.index)
            && entry.mac == Some(mac)
    });
    // The port's address has an entry, so its frames pass.
    if is_known {
        return;
    }
    let (command, undo) = flag(port, "locked", false);
    outcome.add(
        CHECK
            .on(port)
            .evidence(
                format!(
                    "locked on: frames from addresses without an entry are dropped; {mac} of {} {} \
                     has none",
                    tenant.namespace.label,
                    tenant.name()
                ),
                "IFLA_BRPORT_LOCKED, RTM_GETNEIGH",
            )
            .cost(Cost::estimated(1.0, "all frames of this tenant"))
            .by_hand(
                command,
                "any device behind the port may send: 802.1X may have locked it on purpose",
                undo,
            ),
    );
}

/// Broadcast, multicast or unknown addresses held back.
fn held_back(
    view: &View<'_>,
    outcome: &mut CheckOutcome,
    port: DeviceRef<'_>,
    bridge: DeviceRef<'_>,
    settings: Port,
) {
    // A bridge with one port forwards nothing.
    if view.ports(bridge).count() < 2 {
        return;
    }
    let suppressed = [
        // A device with fixed entries needs no flooding; then its port learns nothing either.
        (!settings.bcast_flood, "bcast_flood", "broadcast: ARP does not arrive", 0.9),
        (
            !settings.mcast_flood,
            "mcast_flood",
            "multicast: IPv6 neighbour discovery does not arrive",
            0.5,
        ),
        (
            !settings.flood && !settings.learning,
            "flood",
            "frames to addresses without an entry, and it learns none",
            0.9,
        ),
    ];
    for (_, name, what, share) in suppressed.into_iter().filter(|(is, ..)| *is) {
        let (command, undo) = flag(port, name, true);
        outcome.add(
            CHECK
                .on(port)
                .severity(Severity::Warn)
                .evidence(format!("{name} off: it gets no {what}"), "IFLA_INFO_SLAVE_DATA")
                .cost(Cost::estimated(share, "frames that need it"))
                .confidence(Confidence::Medium)
                .by_hand(command, "a control plane may have set it on purpose", undo),
        );
    }
}
