//! OV100: A bridge's VLAN filter drops frames.

use super::bridge_port::is_uplink;
use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Finding, Severity, View};
use netstate::bridge_vlan::Vlans;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV100",
    title: "A bridge's VLAN filter drops frames",
    severity: Severity::Error,
    explanation: "A bridge with VLAN filtering passes frames only between ports of one VLAN. A \
        port without a VLAN for untagged frames (PVID) drops the frames of a tenant that sends \
        no tags, and a tenant ignores frames that leave its port with a tag. A port that has no \
        VLAN in common with the bridge, its tunnel or its NIC exchanges nothing with other hosts: \
        that is a remark only if other ports do, because a VLAN may be local on purpose.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let filters = |device: &DeviceRef<'_>| {
        device.interface.up && device.interface.bridge.is_some_and(|bridge| bridge.vlan_filtering)
    };
    for bridge in view.devices().filter(filters) {
        let object = format!("{} {}", bridge.namespace.label, bridge.name());
        let Some(vlans) = outcome.need(&object, &bridge.namespace.vlans) else { continue };
        let members = Members { view, bridge, vlans };
        for port in members.ports() {
            if let Some(finding) = members.judge(port) {
                outcome.add(finding);
            }
        }
    }
}

/// The ports of a bridge and their VLANs.
struct Members<'v, 'a> {
    view: &'v View<'a>,
    bridge: DeviceRef<'a>,
    vlans: &'a [Vlans],
}

impl<'a> Members<'_, 'a> {
    /// Ports that carry frames. OV051 reports those that are down.
    fn ports(&self) -> Vec<DeviceRef<'a>> {
        let ports = self.view.ports(self.bridge);
        ports.filter(|port| port.interface.up && port.interface.carrier).collect()
    }

    fn of(&self, device: DeviceRef<'a>) -> impl Iterator<Item = &'a Vlans> {
        self.vlans.iter().filter(move |vlans| vlans.link == device.interface.index)
    }

    /// The VLAN of untagged frames.
    fn pvid(&self, device: DeviceRef<'a>) -> Option<&'a Vlans> {
        self.of(device).find(|vlans| vlans.pvid)
    }

    fn is_member(&self, device: DeviceRef<'a>, vlan: u16) -> bool {
        self.of(device).any(|vlans| (vlans.first..=vlans.last).contains(&vlan))
    }

    /// Ports to other hosts.
    fn uplinks(&self) -> Vec<DeviceRef<'a>> {
        self.ports().into_iter().filter(|port| is_uplink(*port)).collect()
    }

    /// The VLAN that a port most likely belongs to: that of the uplinks, else that of other ports.
    fn likely(&self, port: DeviceRef<'a>) -> u16 {
        let mut others = self.ports();
        others.retain(|other| other.place != port.place);
        others.sort_by_key(|other| !is_uplink(*other));
        // The kernel's default.
        others.into_iter().find_map(|other| self.pvid(other)).map_or(1, |vlans| vlans.first)
    }

    fn judge(&self, port: DeviceRef<'a>) -> Option<Finding> {
        if self.of(port).next().is_none() {
            let evidence = "member of no VLAN: all frames are dropped".to_owned();
            return Some(self.joining(port, evidence, None));
        }
        // An uplink may carry tagged frames only.
        if is_uplink(port) {
            return None;
        }
        let tenant = self.view.peer(port).filter(|tenant| !self.sends_tags(*tenant));
        let named = |tenant: DeviceRef<'_>| {
            format!("{} {} uses no tags", tenant.namespace.label, tenant.name())
        };
        let Some(own) = self.pvid(port) else {
            // Only a tenant that can be read is known to send no tags.
            let evidence = format!("no PVID: untagged frames are dropped; {}", named(tenant?));
            return Some(self.joining(port, evidence, None));
        };
        if let Some(tenant) = tenant.filter(|_| !own.untagged) {
            let evidence =
                format!("frames of VLAN {} leave with a tag; {}", own.first, named(tenant));
            return Some(self.joining(port, evidence, Some(own)));
        }
        self.cut_off(port, own.first)
    }

    /// A tenant's port whose VLAN leads nowhere, beside ports whose VLAN leads to other hosts.
    fn cut_off(&self, port: DeviceRef<'a>, vlan: u16) -> Option<Finding> {
        let uplinks = self.uplinks();
        let leads_on = |vlan| {
            // The host itself may route the VLAN.
            self.is_member(self.bridge, vlan)
                || uplinks.iter().any(|uplink| self.is_member(*uplink, vlan))
        };
        if uplinks.is_empty() || leads_on(vlan) {
            return None;
        }
        let tagged = self.of(port).filter(|vlans| !vlans.pvid);
        if tagged.flat_map(|vlans| vlans.first..=vlans.last).any(leads_on) {
            return None;
        }
        let names: Vec<&str> = uplinks.iter().map(|uplink| uplink.name()).collect();
        let evidence = format!(
            "VLAN {vlan}: neither {} nor {} is a member of it",
            names.join(", "),
            self.bridge.name()
        );
        let finding = self.joining(port, evidence, self.pvid(port));
        Some(finding.severity(Severity::Warn).confidence(Confidence::Medium))
    }

    /// Whether a tenant has a device for tagged frames, or passes on frames of others.
    fn sends_tags(&self, tenant: DeviceRef<'a>) -> bool {
        tenant.interface.master.is_some()
            || self.view.devices_of(tenant.place.namespace).any(|device| {
                device.kind() == "vlan" && device.interface.link == Some(tenant.interface.index)
            })
    }

    /// A finding whose fix makes a port an untagged member of the likely VLAN, or of the VLAN that
    /// it has but does not untag. `before`: the membership that the fix replaces.
    fn joining(&self, port: DeviceRef<'a>, evidence: String, before: Option<&Vlans>) -> Finding {
        let vlan = match before {
            Some(own) if !own.untagged => own.first,
            _ => self.likely(port),
        };
        let run =
            |words: &str| inside(port.namespace.path.as_deref(), &format!("bridge vlan {words}"));
        let device = quote(port.name());
        let fix = run(&format!("add dev {device} vid {vlan} pvid untagged"));
        let mut undo = Vec::new();
        if before.is_none_or(|own| own.first != vlan) {
            undo.push(run(&format!("del dev {device} vid {vlan}")));
        }
        if let Some(own) = before {
            let leave = if own.untagged { " untagged" } else { "" };
            undo.push(run(&format!("add dev {device} vid {} pvid{leave}", own.first)));
        }
        let all: Vec<String> = self.ports().into_iter().map(|other| self.shown(other)).collect();
        CHECK
            .on(port)
            .evidence(evidence, "IFLA_BRIDGE_VLAN_INFO")
            .evidence(
                format!("{} filters VLANs; {}", self.bridge.name(), all.join("; ")),
                "IFLA_BRIDGE_VLAN_INFO",
            )
            .cost(Cost::estimated(1.0, "frames of this port"))
            .by_hand(fix, "the VLAN's other members reach the port", undo.join(" && "))
    }

    /// A port's VLANs, as `bridge vlan show` lists them.
    fn shown(&self, port: DeviceRef<'a>) -> String {
        let range = |vlans: &Vlans| {
            let mut text = match vlans.first == vlans.last {
                true => vlans.first.to_string(),
                false => format!("{}-{}", vlans.first, vlans.last),
            };
            for (is, word) in [(vlans.pvid, " PVID"), (vlans.untagged, " untagged")] {
                text.push_str(if is { word } else { "" });
            }
            text
        };
        let ranges: Vec<String> = self.of(port).map(range).collect();
        match ranges.is_empty() {
            true => format!("{}: none", port.name()),
            false => format!("{}: {}", port.name(), ranges.join(", ")),
        }
    }
}
