//! The list of checks. Each check has its own file.

use std::net::IpAddr;

use netstate::snmp;

use crate::finding::{Confidence, Cost, Finding, Severity, Skipped};
use crate::host::{Namespace, Pair, Reading};
use crate::view::{DeviceRef, View};
use settings::Change;

mod accelerable;
mod address_unused;
mod backlog_drops;
mod bridge_mtu;
mod bridge_netfilter;
mod bridge_port;
mod checksum_errors;
mod conntrack_full;
mod conntrack_refused;
mod device_errors;
mod duplicate_address;
mod duplicate_mac;
mod enic_interrupts;
mod entry_contradicts;
mod far_end;
mod fdb_missing;
mod fdb_own_address;
mod few_queues;
mod filter_depends;
mod filtered_tenants;
mod filtered_tunnel;
mod flow_limit;
mod fragmentation;
mod gateway_silent;
mod gso_max_size;
mod interrupts_on_one_cpu;
mod ipsec_drops;
mod ipv6_disabled;
mod known_broken;
mod large_receive_offload;
mod leads_on;
mod link_down;
mod link_flaps;
mod listen_queue;
mod loopback_listener;
mod lost_upcalls;
mod mac_on_both_sides;
mod macvlan_parent;
mod many_rules;
mod multicast_group;
mod nat_mtu;
mod neighbour_failed;
mod neighbour_table_full;
mod nested_tunnel;
mod netdev_max_backlog;
mod nic_gro;
mod nic_segmentation;
mod no_arp;
mod no_flood;
mod no_route;
mod not_announced;
mod not_forwarding;
mod not_masqueraded;
mod numa_distance;
mod one_source_port;
mod overlapping_networks;
mod overlay_extent;
mod overlay_mss;
mod overlay_mtu;
mod overlay_mtu_differs;
mod ovs_user_space;
mod packet_filter;
mod path_mtu;
mod pmtu_discovery_off;
mod pod_route;
mod policer;
mod policy_rule;
mod powersave;
mod prefixes_differ;
mod probed_offload;
mod qdisc_drops;
mod queue_delay;
mod queues_uneven;
mod quota;
mod reassembly_failures;
mod reassembly_memory;
mod receive_ring;
mod reverse_path_filter;
mod route_elsewhere;
mod router_advertisements;
mod rps_unset;
mod rule_drops;
mod service_beside_filter;
mod service_rejected;
mod shaper_burst;
mod softirq_squeeze;
mod steal;
mod steered_to_one_cpu;
mod tap_offloads;
mod tap_queue_drops;
mod tap_single_queue;
mod tap_vnet_header;
mod tap_without_vhost;
mod tenant_checksum;
mod tenant_filter;
mod tenant_outside;
mod tenant_segmentation;
mod translated;
mod tunnel_big_tcp;
mod tunnel_checksum_segmentation;
mod tunnel_conntrack;
mod tunnel_extensions;
mod tunnel_hash;
mod tunnel_outer_checksum;
mod tunnel_outside;
mod tunnel_segmentation;
mod tunnel_source;
mod tunnel_ttl;
mod tunnel_zero_checksum;
mod tx_queue_length;
mod tx_timeout;
mod udp_receive_buffer;
mod udp_send_buffer;
mod underlay_jumbo;
mod veth_mtu;
mod vlan_filter;
mod vni_unknown;
mod vtep_unreachable;
mod vxlan_gro;
mod vxlan_listener;
mod vxlan_port;
mod xdp_program;

/// A check: one kind of fault, and the function that finds it.
#[derive(Debug)]
pub struct Check {
    /// Code, which never changes its meaning.
    pub code: &'static str,
    /// Title of its findings.
    pub title: &'static str,
    /// Default severity of its findings.
    pub severity: Severity,
    /// Explanation: meaning, cost, and when the state is correct.
    pub explanation: &'static str,
    /// Examines the host, and adds findings and objects that could not be examined.
    pub run: fn(&View<'_>, &mut CheckOutcome),
}

/// Every check, by code.
pub const CHECKS: &[Check] = &[
    tunnel_segmentation::CHECK,
    tunnel_checksum_segmentation::CHECK,
    tunnel_outer_checksum::CHECK,
    nic_gro::CHECK,
    vxlan_gro::CHECK,
    tenant_segmentation::CHECK,
    gso_max_size::CHECK,
    large_receive_offload::CHECK,
    checksum_errors::CHECK,
    nic_segmentation::CHECK,
    tenant_checksum::CHECK,
    overlay_mtu::CHECK,
    bridge_mtu::CHECK,
    veth_mtu::CHECK,
    fragmentation::CHECK,
    underlay_jumbo::CHECK,
    overlay_mtu_differs::CHECK,
    nat_mtu::CHECK,
    pmtu_discovery_off::CHECK,
    reassembly_failures::CHECK,
    receive_ring::CHECK,
    rps_unset::CHECK,
    steal::CHECK,
    backlog_drops::CHECK,
    softirq_squeeze::CHECK,
    netdev_max_backlog::CHECK,
    conntrack_full::CHECK,
    conntrack_refused::CHECK,
    tunnel_conntrack::CHECK,
    udp_receive_buffer::CHECK,
    udp_send_buffer::CHECK,
    vxlan_listener::CHECK,
    vni_unknown::CHECK,
    fdb_missing::CHECK,
    vtep_unreachable::CHECK,
    fdb_own_address::CHECK,
    duplicate_address::CHECK,
    duplicate_mac::CHECK,
    neighbour_table_full::CHECK,
    neighbour_failed::CHECK,
    reverse_path_filter::CHECK,
    bridge_netfilter::CHECK,
    tap_vnet_header::CHECK,
    tap_single_queue::CHECK,
    tap_queue_drops::CHECK,
    ovs_user_space::CHECK,
    qdisc_drops::CHECK,
    tx_timeout::CHECK,
    device_errors::CHECK,
    link_down::CHECK,
    tx_queue_length::CHECK,
    vxlan_port::CHECK,
    known_broken::CHECK,
    few_queues::CHECK,
    tunnel_hash::CHECK,
    queues_uneven::CHECK,
    interrupts_on_one_cpu::CHECK,
    numa_distance::CHECK,
    powersave::CHECK,
    enic_interrupts::CHECK,
    flow_limit::CHECK,
    far_end::CHECK,
    overlay_mss::CHECK,
    lost_upcalls::CHECK,
    reassembly_memory::CHECK,
    tap_without_vhost::CHECK,
    not_forwarding::CHECK,
    entry_contradicts::CHECK,
    path_mtu::CHECK,
    filtered_tunnel::CHECK,
    router_advertisements::CHECK,
    filtered_tenants::CHECK,
    many_rules::CHECK,
    bridge_port::CHECK,
    tap_offloads::CHECK,
    shaper_burst::CHECK,
    pod_route::CHECK,
    queue_delay::CHECK,
    tunnel_outside::CHECK,
    mac_on_both_sides::CHECK,
    overlapping_networks::CHECK,
    no_flood::CHECK,
    one_source_port::CHECK,
    quota::CHECK,
    accelerable::CHECK,
    steered_to_one_cpu::CHECK,
    multicast_group::CHECK,
    probed_offload::CHECK,
    tunnel_source::CHECK,
    tunnel_zero_checksum::CHECK,
    tunnel_big_tcp::CHECK,
    nested_tunnel::CHECK,
    link_flaps::CHECK,
    prefixes_differ::CHECK,
    tenant_outside::CHECK,
    tenant_filter::CHECK,
    no_route::CHECK,
    vlan_filter::CHECK,
    policer::CHECK,
    gateway_silent::CHECK,
    route_elsewhere::CHECK,
    policy_rule::CHECK,
    tunnel_ttl::CHECK,
    xdp_program::CHECK,
    filter_depends::CHECK,
    address_unused::CHECK,
    translated::CHECK,
    ipsec_drops::CHECK,
    rule_drops::CHECK,
    service_rejected::CHECK,
    not_masqueraded::CHECK,
    not_announced::CHECK,
    service_beside_filter::CHECK,
    listen_queue::CHECK,
    loopback_listener::CHECK,
    ipv6_disabled::CHECK,
    macvlan_parent::CHECK,
    no_arp::CHECK,
    tunnel_extensions::CHECK,
];

/// Whether an address is an IPv6 link-local one, which no router forwards.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(six) if six.is_unicast_link_local())
}

/// The command for routes, rules and neighbours of an address's family.
fn ip_command(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "ip" } else { "ip -6" }
}

/// Returns a check by code, ignoring case.
pub fn find(code: &str) -> Option<&'static Check> {
    CHECKS.iter().find(|check| check.code.eq_ignore_ascii_case(code))
}

/// Results of the checks that ran.
#[derive(Debug, Default)]
pub struct CheckOutcome {
    /// Findings, in the order of the checks.
    pub findings: Vec<Finding>,
    /// Objects that could not be examined.
    pub skipped: Vec<Skipped>,
    code: &'static str,
}

/// Namespace label of findings on the machine.
pub const MACHINE: &str = "machine";

impl Check {
    fn on(&self, spot: DeviceRef<'_>) -> Finding {
        self.in_namespace(spot.namespace, spot.name())
    }

    /// A finding on another object of a namespace.
    fn in_namespace(&self, namespace: &Namespace, object: impl Into<String>) -> Finding {
        Finding {
            code: self.code.to_owned(),
            title: self.title.to_owned(),
            severity: self.severity,
            namespace: namespace.label.clone(),
            object: object.into(),
            evidence: Vec::new(),
            cost: Cost::estimated(0.0, "unknown"),
            confidence: Confidence::High,
            fix: None,
        }
    }

    /// A finding on counters that increased between the two readings. The cost is their sum
    /// relative to `whole` packets. `None` if none increased.
    fn counted(
        &self,
        (namespace, object): (&Namespace, &str),
        counts: &[(&str, u64)],
        source: &str,
        (whole, what): (u64, &str),
    ) -> Option<Finding> {
        let all = counts.iter().fold(0_u64, |all, (_, count)| all.saturating_add(*count));
        let finding =
            self.in_namespace(namespace, object).cost(Cost::of_packets(all, whole.max(all), what));
        let finding = counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .fold(finding, |finding, (name, count)| {
                finding.evidence(format!("{name} +{count}"), source)
            });
        // Counters that did not increase are no finding.
        (all > 0).then_some(finding)
    }

    fn on_machine(&self, object: &str) -> Finding {
        Finding {
            code: self.code.to_owned(),
            title: self.title.to_owned(),
            severity: self.severity,
            namespace: MACHINE.to_owned(),
            object: object.to_owned(),
            evidence: Vec::new(),
            cost: Cost::estimated(0.0, "unknown"),
            confidence: Confidence::High,
            fix: None,
        }
    }
}

impl CheckOutcome {
    /// Runs one check and appends its results.
    pub fn run(&mut self, check: &Check, view: &View<'_>) {
        self.code = check.code;
        (check.run)(view, self);
    }

    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Returns the value. If it was not read, adds a note and returns `None`.
    fn need<'r, T>(&mut self, object: &str, reading: &'r Reading<T>) -> Option<&'r T> {
        self.need_result(object, reading.as_result())
    }

    fn need_result<T>(&mut self, object: &str, result: Result<T, &str>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(reason) => {
                self.skip(object, reason);
                None
            }
        }
    }

    /// Notes that the check could not examine an object.
    fn skip(&mut self, object: &str, reason: &str) {
        self.skipped.push(Skipped {
            code: self.code.to_owned(),
            object: object.to_owned(),
            reason: reason.to_owned(),
        });
    }

    /// Returns `Some` if a feature exists and is off.
    fn off(&mut self, spot: DeviceRef<'_>, feature: &str) -> Option<Off> {
        let object = format!("{} {}", spot.namespace.label, spot.name());
        let state = self.need_result(&object, spot.feature(feature))??;
        match state {
            crate::host::Feature::Off => Some(Off { fixed: false }),
            crate::host::Feature::OffFixed => Some(Off { fixed: true }),
            // The feature is on, or the kernel does not have it.
            _ => None,
        }
    }

    /// Returns both readings of a namespace's counters.
    fn moving<'n, T>(
        &mut self,
        namespace: &'n Namespace,
        reading: &'n Reading<Pair<T>>,
    ) -> Option<&'n Pair<T>> {
        self.need(&namespace.label, reading)
    }

    /// Returns a CPU that spends nearly all its time in softirqs while another is idle.
    fn busy_with_softirqs(&mut self, view: &View<'_>) -> Option<Busy> {
        /// With fewer ticks a share means nothing.
        const ENOUGH: u64 = 20;
        let pair = self.need(MACHINE, &view.host().machine.cpu)?;
        let mut busy = None;
        let mut idle = false;
        for (number, after) in &pair.after.cpus {
            // A CPU that came online between the readings has no first reading.
            let Some(before) = pair.before.cpus.get(number) else { continue };
            let moved = after.since(before);
            if moved.total() < ENOUGH {
                continue;
            }
            let share = |ticks: u64| ticks as f64 / moved.total() as f64;
            if share(moved.softirq.saturating_add(moved.irq)) >= Busy::SHARE {
                busy = Some(*number);
            }
            idle |= share(moved.idle.saturating_add(moved.iowait)) >= Busy::IDLE;
        }
        // Without an idle CPU, spreading the work would not help.
        let cpu = busy.filter(|_| idle)?;
        Some(Busy { cpu, cpus: pair.after.cpus.len() })
    }

    /// Returns the increases of each namespace's protocol counters, if read.
    fn moved<'v>(&mut self, view: &View<'v>) -> Vec<(&'v Namespace, snmp::Counters)> {
        let namespaces = view.host().namespaces.iter();
        namespaces
            .filter_map(|namespace| {
                let pair = self.moving(namespace, &namespace.snmp)?;
                Some((namespace, pair.after.since(&pair.before)))
            })
            .collect()
    }
}

impl Finding {
    /// Adds a fix that raises a setting of the machine, if its value was read.
    #[must_use]
    fn raise(
        self,
        view: &View<'_>,
        key: &str,
        larger: impl FnOnce(u64) -> u64,
        risk: &str,
    ) -> Finding {
        let setting = view.host().machine.sysctls.get(key);
        match setting.and_then(|value| value.get()?.parse().ok()) {
            Some(now) => self.set(Change::machine(key, now, larger(now)), risk),
            // An undo needs the present value, and it could not be read.
            None => self,
        }
    }
}

/// Returns the first of several devices that share a unique value, and one in another namespace.
/// Two devices of one namespace may share it on purpose.
fn shared_between<'s, 'v>(
    owners: &'s [DeviceRef<'v>],
) -> Option<(&'s DeviceRef<'v>, &'s DeviceRef<'v>)> {
    let (first, others) = owners.split_first()?;
    let other = others.iter().find(|other| other.place.namespace != first.place.namespace)?;
    Some((first, other))
}

/// A CPU that limits receiving.
#[derive(Debug, Clone, Copy)]
struct Busy {
    cpu: usize,
    /// CPUs of the machine.
    cpus: usize,
}

impl Busy {
    /// Share of time in softirqs from which a CPU limits receiving.
    const SHARE: f64 = 0.9;
    /// Share of idle time from which another CPU could help.
    const IDLE: f64 = 0.5;

    fn evidence(cpu: usize) -> String {
        format!("CPU {cpu} is in softirqs at least {} of the time", Busy::SHARE)
    }
}

/// A feature that is off.
#[derive(Debug, Clone, Copy)]
struct Off {
    /// The driver does not let it be switched on.
    fixed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_in_order() {
        let codes: Vec<&str> = CHECKS.iter().map(|check| check.code).collect();
        let mut sorted = codes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(codes, sorted);
        assert!(codes.iter().all(|code| code.len() == 5 && code.starts_with("OV")));
    }

    #[test]
    fn every_check_is_explained() {
        for check in CHECKS {
            assert!(check.explanation.len() > 80, "{}", check.code);
            assert!(check.title.len() <= 50 && !check.title.ends_with('.'), "{}", check.title);
        }
        assert_eq!(find("ov013").map(|check| check.code), Some("OV013"));
    }
}
