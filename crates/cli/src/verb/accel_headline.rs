//! The headline of a VXLAN device: how much of it is accelerated.

use accel::status::{DeviceStatus, Refused};
use accel::{Path, Reason};

/// Returns the state of a device with its tenants' ports and remote VTEPs, and the share of its
/// packets that took the fast path.
pub(super) fn headline(device: &DeviceStatus) -> String {
    if let Some(refused) = &device.refused {
        return format!("slow path: {refused}");
    }
    let remotes = device.remotes.iter().map(|remote| (remote.name.as_str(), &remote.refused));
    let ports = device.ports.iter().map(|port| (port.name.as_str(), &port.refused));
    let mut parts = Vec::new();
    for (of, what, all) in [
        ("to", "remote VTEPs", remotes.collect::<Vec<_>>()),
        ("from", "ports", ports.collect::<Vec<_>>()),
    ] {
        let mut refused = all.iter().filter_map(|(name, refused)| Some((name, refused.as_ref()?)));
        // A device without them yet is ready for the first.
        let Some((name, why)) = refused.next() else { continue };
        let fast = all.len() - 1 - refused.count();
        if fast == 0 {
            return format!("slow path: all {what} are refused, {}", first(name, why));
        }
        parts.push(format!(" {of} {fast} of {} {what}", all.len()));
    }
    let share = share(device).map(|share| format!(" ({share} of its packets)")).unwrap_or_default();
    format!("accelerated{}{share}", parts.join(","))
}

fn first(name: &str, why: &Refused) -> String {
    format!("{name}: {why}")
}

/// Formats the share of packets on the fast path; `None` without packets. Packets from tenants
/// count at their ports, packets from the wire at the device.
fn share(device: &DeviceStatus) -> Option<String> {
    let at_ports = device.ports.iter().map(|port| (&port.packets, true));
    let (mut fast, mut all) = (0, 0);
    for (packets, is_encap) in at_ports.chain([(&device.packets, false)]) {
        for reason in Reason::ALL.iter().filter(|reason| reason.is_encap() == is_encap) {
            let packets = packets.get(reason.word()).map_or(0, |counted| counted.packets);
            all += packets;
            fast += if reason.path() == Path::Fast { packets } else { 0 };
        }
    }
    // Rounded down: 100% means all.
    (all > 0).then(|| format!("{}%", u128::from(fast) * 100 / u128::from(all)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with these remote VTEPs and ports: whether each is refused.
    fn device(remotes: &[bool], ports: &[bool]) -> DeviceStatus {
        let refused = |is_refused: bool| {
            let refused = serde_json::json!({
                "code": "AX202", "object": "rule", "evidence": "a rule drops", "remedy": "none",
            });
            if is_refused { refused } else { serde_json::Value::Null }
        };
        let remotes = remotes.iter().enumerate().map(
            |(n, is)| serde_json::json!({ "name": format!("10.0.0.{n}"), "refused": refused(*is) }),
        );
        let ports = ports.iter().enumerate().map(|(n, is)| {
            serde_json::json!({
                "name": format!("veth{n}"), "refused": refused(*is), "entries": 1, "packets": {},
            })
        });
        let device = serde_json::json!({
            "device": "vxlan0", "refused": null, "entries": 0, "packets": {},
            "ports": ports.collect::<Vec<_>>(), "remotes": remotes.collect::<Vec<_>>(),
        });
        serde_json::from_value(device).unwrap()
    }

    #[test]
    fn a_device_is_called_accelerated_as_far_as_it_is() {
        for (remotes, ports, expected) in [
            (&[][..], &[][..], "accelerated"),
            (&[false, false], &[false], "accelerated"),
            (&[false, true, false], &[false], "accelerated to 2 of 3 remote VTEPs"),
            (&[false], &[true, false], "accelerated from 1 of 2 ports"),
            (
                &[false, true],
                &[true, false],
                "accelerated to 1 of 2 remote VTEPs, from 1 of 2 ports",
            ),
            (
                &[true, true],
                &[false],
                "slow path: all remote VTEPs are refused, 10.0.0.0: AX202 a rule drops",
            ),
            (&[false], &[true], "slow path: all ports are refused, veth0: AX202 a rule drops"),
        ] {
            assert_eq!(headline(&device(remotes, ports)), expected);
        }
    }

    #[test]
    fn the_share_of_packets_counts_both_directions_once() {
        let mut device = device(&[false], &[false]);
        let counted = |packets: u64| serde_json::json!({ "packets": packets, "bytes": 0 });
        let counts = |of| serde_json::from_value(of).unwrap();
        device.packets = counts(serde_json::json!({
            "decap_hit": counted(90), "decap_destination": counted(10), "encap_hit": counted(77),
        }));
        device.ports[0].packets = counts(
            serde_json::json!({ "encap_hit": counted(99), "encap_destination": counted(1) }),
        );
        assert_eq!(headline(&device), "accelerated (94% of its packets)");
    }
}
