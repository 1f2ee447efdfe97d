//! OV063: The other end of a tunnel disagrees.

use netstate::interface::{Interface, Vxlan};

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::finding::Finding;
use crate::host::FarEnd;

pub(super) const CHECK: Check = Check {
    code: "OV063",
    title: "The other end of a tunnel disagrees",
    severity: Severity::Error,
    explanation: "The host at the other end, read by --peer, is configured differently. With a \
        different VNI or UDP port, no packet arrives. With a smaller MTU there, larger packets are \
        dropped without ICMP. With outer checksums at one end only, the end that receives none \
        cannot merge packets (OV003).",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for far in &view.host().far_ends {
        let mut concerned = false;
        // An external device gets remote and VNI with each packet, so there is nothing to compare.
        for (tunnel, vxlan) in view.fixed_tunnels() {
            if view.underlays(tunnel).iter().any(|underlay| far.is_at(underlay.remote)) {
                concerned = true;
                outcome.findings.extend(judge(tunnel, vxlan, far));
            }
        }
        // Otherwise a mistyped address would look like agreement.
        if !concerned {
            let why = "no tunnel of this host has it as its remote";
            outcome.skip(&far.address.to_string(), why);
        }
    }
}

fn judge(tunnel: DeviceRef<'_>, vxlan: &Vxlan, far: &FarEnd) -> Option<Finding> {
    // An external device accepts any VNI, and has none to compare.
    if far.vxlans().any(|(_, other)| other.external && other.port == vxlan.port) {
        return None;
    }
    let finding = CHECK.on(tunnel).evidence(
        format!("VNI {}, port {}, MTU {}", vxlan.vni, vxlan.port, tunnel.interface.mtu),
        "RTM_GETLINK",
    );
    let there = |what: String| (what, format!("{}, asked by --peer", far.address));
    let Some((link, other)) = far.vxlans().find(|(_, other)| other.vni == vxlan.vni) else {
        let vnis: Vec<String> = far.vxlans().map(|(_, other)| other.vni.to_string()).collect();
        let what = match vnis.is_empty() {
            true => "there is no VXLAN device".to_owned(),
            false => format!("VNIs there: {}", vnis.join(", ")),
        };
        let (what, source) = there(what);
        let cost = Cost::estimated(1.0, "all packets to this remote");
        return Some(finding.evidence(what, source).cost(cost).confidence(Confidence::Medium));
    };
    if other.port != vxlan.port {
        let (what, source) = there(format!("port of {} there: {}", link.name, other.port));
        let cost = Cost::estimated(1.0, "all packets to this remote");
        return Some(finding.evidence(what, source).cost(cost));
    }
    // A larger MTU there is no problem for packets from here.
    if tunnel.interface.mtu > link.mtu {
        let (what, source) = there(format!("MTU of {} there: {}", link.name, link.mtu));
        let cost = Cost::estimated(0.5, "packets over the smaller MTU");
        return Some(finding.evidence(what, source).cost(cost).severity(Severity::Warn));
    }
    if (vxlan.checksum, vxlan.checksum6) != (other.checksum, other.checksum6) {
        let word = |on| if on { "sent" } else { "not sent" };
        // If neither end has an address configured, the tunnel runs over IPv4.
        let ipv4 = other.local.or(vxlan.local).is_none_or(|local| local.is_ipv4());
        let (ours, theirs) = match ipv4 {
            true => (vxlan.checksum, other.checksum),
            false => (vxlan.checksum6, other.checksum6),
        };
        let (what, source) = there(format!(
            "outer checksums here: {}; by {} there: {}",
            word(ours),
            link.name,
            word(theirs)
        ));
        let cost = Cost::estimated(0.2, "CPU time of the end that receives none");
        let finding = finding.evidence(what, source).cost(cost).severity(Severity::Info);
        return (ours != theirs).then_some(finding);
    }
    None
}

impl FarEnd {
    /// Whether a remote is this host. The address used for --peer may differ from the VTEP's
    /// address.
    pub(super) fn is_at(&self, remote: std::net::IpAddr) -> bool {
        self.address == remote || self.vxlans().any(|(_, vxlan)| vxlan.local == Some(remote))
    }

    pub(super) fn vxlans(&self) -> impl Iterator<Item = (&Interface, &Vxlan)> {
        self.tunnels.iter().filter_map(|link| Some((link, link.vxlan.as_ref()?)))
    }
}
