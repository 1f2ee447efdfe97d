//! Status and vitals as Prometheus metrics.
//!
//! Each answer is built from scratch, so series of removed devices disappear. Labels are bounded:
//! reasons and codes are lists in this crate, and only [`MOST_DEVICES`] VXLAN devices have their
//! own series. Tenants' ports come and go with pods, so they are counted, not named.

use std::collections::BTreeMap;
use std::time::Duration;

use foreign::metrics::Page as Metrics;

use crate::model::{Counted, Reason};
use crate::status::{DeviceStatus, Refused, Status};
use crate::vitals::{Cause, Vitals};

/// Maximum number of VXLAN devices with their own series.
const MOST_DEVICES: usize = 512;
/// Prefix of metric names.
const PREFIX: &str = "overlane_accel";

/// Renders the metrics of a fast path in the Prometheus text format 0.0.4.
pub fn exposition(status: &Status, vitals: &Vitals, version: &str) -> String {
    let mut page = Page(Metrics::new(PREFIX, version));
    page.state(status);
    page.flows(status);
    page.vitals(vitals);
    page.packets(status);
    page.devices(status);
    page.0.text()
}

struct Page(Metrics);

impl Page {
    /// Adds a gauge with one value per label set.
    fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        values: impl IntoIterator<Item = ([String; N], usize)>,
    ) {
        let values = values.into_iter().map(|(labels, value)| (labels, value as f64));
        self.0.gauges(name, help, labels, values);
    }

    fn state(&mut self, status: &Status) {
        // An odd generation or a failed reconciler sends all packets to the slow path.
        let in_force = status.generation & 1 == 0 && status.problem.is_none();
        for (name, help, value) in [
            ("in_force", "1 while packets may take the fast path.", usize::from(in_force)),
            ("generation", "Generation of the maps; odd while all packets take the slow path.", {
                usize::try_from(status.generation).unwrap_or(usize::MAX)
            }),
            ("entries", "Forwarding entries in the maps.", status.entries),
            (
                "max_entries",
                "Limit of forwarding entries in the maps.",
                status.max_entries as usize,
            ),
            (
                "left_out_entries",
                "Forwarding entries that did not fit and take the slow path.",
                status.left_out,
            ),
            ("devices", "VXLAN devices, accelerated or refused.", status.devices.len()),
            (
                "packet_sockets",
                "Packet sockets that do not receive accelerated packets.",
                status.listeners.as_ref().map_or(0, Vec::len),
            ),
        ] {
            self.0.gauge(name, help, value as f64);
        }
        self.0.counter(
            "followed_changes_total",
            "Incremental changes of single forwarding entries.",
            status.followed as f64,
        );
        self.0.counter(
            "unfollowed_changes_total",
            "Changes of learned addresses beyond the budgets of their ports.",
            status.unfollowed as f64,
        );
    }

    /// Adds the verdicts on connections through packet filters. All are zero if no flow needs a
    /// verdict.
    fn flows(&mut self, status: &Status) {
        let flows = status.flows.clone().unwrap_or_default();
        self.0.gauge(
            "verdicts_number",
            "Number of the state that verdicts depend on.",
            flows.number as f64,
        );
        for (name, help, value) in [
            (
                "connections_admitted_total",
                "Connections through packet filters admitted to the fast path.",
                flows.admitted,
            ),
            (
                "connections_held_total",
                "Verdicts that denied a connection the fast path.",
                flows.denied,
            ),
        ] {
            self.0.counter(name, help, value as f64);
        }
        self.0.counter(
            "admission_seconds_total",
            "Time spent computing verdicts.",
            Duration::from_micros(flows.spent_us).as_secs_f64(),
        );
    }

    fn vitals(&mut self, vitals: &Vitals) {
        self.0.gauge(
            "heartbeat_age_seconds",
            "Time since the reconciler's last heartbeat; above 0.1 all packets take the slow path.",
            vitals.heartbeat_age.as_secs_f64(),
        );
        self.0.gauge(
            "finder_lost",
            "1 if the process that finds sandboxes has ended.",
            f64::from(u8::from(vitals.finder_lost)),
        );
        for (name, help, value) in [
            (
                "withdrawals_total",
                "Times that all packets were sent to the slow path.",
                vitals.withdrawals,
            ),
            (
                "revoked_entries_total",
                "Single forwarding entries that were revoked.",
                vitals.revoked_entries,
            ),
        ] {
            self.0.counter(name, help, value as f64);
        }
        self.0.counters(
            "rebuilds_total",
            "Times that the whole state was read again, by cause.",
            ["cause"],
            Cause::ALL.map(|cause| ([cause.word().to_owned()], vitals.rebuilds(cause) as f64)),
        );
    }

    fn packets(&mut self, status: &Status) {
        type Number = fn(&Counted) -> u64;
        let numbers: [(&str, &str, Number); 2] = [
            ("packets", "Packets (a GSO packet is one)", |counted| counted.packets),
            ("bytes", "Bytes with Ethernet header, without outer headers", |counted| counted.bytes),
        ];
        for (what, help, number) in numbers {
            let all = Reason::ALL.iter().map(|reason| {
                let value = status.packets.get(reason.word()).map_or(0, number);
                ([reason.word().to_owned(), path(*reason)], value as f64)
            });
            self.0.counters(
                &format!("{what}_total"),
                &format!("{help} by outcome, each counted once."),
                ["reason", "path"],
                all,
            );
            let devices = shown(status).flat_map(|device| {
                let counted = counted(&device.packets);
                counted.map(|(reason, counted)| {
                    let name = device.device.clone();
                    ([name, reason.word().to_owned(), path(reason)], number(counted) as f64)
                })
            });
            self.0.counters(
                &format!("device_{what}_total"),
                &format!("{help} from the wire for a VXLAN device, and to the wire past it."),
                ["device", "reason", "path"],
                devices,
            );
        }
    }

    fn devices(&mut self, status: &Status) {
        self.gauges(
            "device_accelerated",
            "1: accelerated; 0: all its packets take the slow path.",
            ["device"],
            shown(status)
                .map(|device| ([device.device.clone()], usize::from(device.refused.is_none()))),
        );
        self.gauges(
            "device_refused",
            "1 for the code that refuses a VXLAN device (overlane accel explain CODE).",
            ["device", "code"],
            shown(status).filter_map(|device| {
                Some(([device.device.clone(), device.refused.as_ref()?.code.clone()], 1))
            }),
        );
        self.gauges(
            "device_entries",
            "Forwarding entries for addresses behind a VXLAN device.",
            ["device"],
            shown(status).map(|device| ([device.device.clone()], device.entries)),
        );
        let state = |refused: &Option<Refused>| {
            if refused.is_none() { "accelerated" } else { "slow" }.to_owned()
        };
        let mut parts = BTreeMap::<[String; 3], usize>::new();
        for device in shown(status) {
            let ports = device.ports.iter().map(|port| ("port", &port.refused));
            let remotes = device.remotes.iter().map(|remote| ("remote", &remote.refused));
            // Export zeros, too, so that each series exists from the start.
            for state_of in ["accelerated", "slow"] {
                for kind in ["port", "remote"] {
                    let key = [device.device.clone(), kind.to_owned(), state_of.to_owned()];
                    parts.entry(key).or_default();
                }
            }
            for (kind, refused) in ports.chain(remotes) {
                let key = [device.device.clone(), kind.to_owned(), state(refused)];
                *parts.entry(key).or_default() += 1;
            }
        }
        self.gauges(
            "device_parts",
            "Tenants' ports and remote VTEPs of a VXLAN device, by state.",
            ["device", "kind", "state"],
            parts,
        );
        let refusals = status.refusals().map(|(_, refused)| ([refused.code.clone()], 1));
        self.gauges(
            "refusals",
            "Refused devices, ports, remote VTEPs and IPv6, by code.",
            ["code"],
            refusals,
        );
    }
}

fn path(reason: Reason) -> String {
    reason.path().word().to_owned()
}

fn shown(status: &Status) -> impl Iterator<Item = &DeviceStatus> {
    // Limit the number of series.
    status.devices.iter().take(MOST_DEVICES)
}

fn counted(packets: &BTreeMap<String, Counted>) -> impl Iterator<Item = (Reason, &Counted)> {
    Reason::ALL.iter().filter_map(|reason| Some((*reason, packets.get(reason.word())?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{PortStatus, RemoteStatus};

    fn vitals() -> Vitals {
        crate::vitals::Pulse::new().vitals()
    }

    fn device(name: &str, code: Option<&str>) -> DeviceStatus {
        let refused = code.map(|code| Refused {
            code: code.to_owned(),
            object: name.to_owned(),
            evidence: "e".to_owned(),
            remedy: "r".to_owned(),
        });
        DeviceStatus {
            device: name.to_owned(),
            refused: refused.clone(),
            entries: 2,
            packets: [("decap_hit".to_owned(), Counted { packets: 3, bytes: 300 })].into(),
            ports: vec![PortStatus {
                name: "veth1".to_owned(),
                refused: None,
                entries: 1,
                packets: BTreeMap::new(),
                id: None,
            }],
            ipv6: Vec::new(),
            remotes: vec![RemoteStatus { name: "192.0.2.1".to_owned(), refused }],
            id: None,
        }
    }

    #[test]
    fn saved_hosts_have_counters_and_no_tenant_names() {
        let odd = "a\"b\\c\n";
        let status = Status {
            devices: vec![device("vxlan0", None), device(odd, Some("AX201"))],
            packets: [("encap_hit".to_owned(), Counted { packets: 7, bytes: 700 })].into(),
            generation: 4,
            ..Status::default()
        };
        let text = exposition(&status, &vitals(), "1.2.3");
        for line in [
            "overlane_accel_build_info{version=\"1.2.3\"} 1",
            "overlane_accel_in_force 1",
            "overlane_accel_packets_total{path=\"fast\",reason=\"encap_hit\"} 7",
            "overlane_accel_bytes_total{path=\"slow\",reason=\"decap_gso\"} 0",
            "overlane_accel_device_packets_total{device=\"vxlan0\",path=\"fast\",reason=\"decap_hit\"} 3",
            "overlane_accel_device_accelerated{device=\"a\\\"b\\\\c\\\\n\"} 0",
            "overlane_accel_device_refused{code=\"AX201\",device=\"a\\\"b\\\\c\\\\n\"} 1",
            "overlane_accel_device_parts{device=\"vxlan0\",kind=\"port\",state=\"accelerated\"} 1",
            "overlane_accel_refusals{code=\"AX201\"} 2",
            "# TYPE overlane_accel_rebuilds_total counter",
            "overlane_accel_rebuilds_total{cause=\"budget\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("veth1") && !text.contains("192.0.2.1"), "{text}");
        assert!(text.contains("process_resident_memory_bytes "), "{text}");
    }

    #[test]
    fn labels_are_bounded() {
        let devices = (0..5000).map(|number| device(&format!("v{number}"), Some("AX005")));
        let status = Status { devices: devices.collect(), ..Status::default() };
        let text = exposition(&status, &vitals(), "1");
        assert!(text.contains("overlane_accel_devices 5000\n"), "{text}");
        assert_eq!(text.matches("overlane_accel_device_accelerated{").count(), MOST_DEVICES);
        assert!(text.len() < 2 << 20, "{} bytes", text.len());
    }
}
