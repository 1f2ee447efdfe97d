//! OV009: checksum error counters increase.

use super::{Check, CheckOutcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV009",
    title: "Packets arrive with wrong checksums",
    severity: Severity::Error,
    explanation: "Packets were dropped between the two readings because their IP, UDP or TCP \
        checksum was wrong. On an overlay the usual cause is a NIC or hypervisor that does not \
        finish a checksum it should finish: VXLAN behind NAT (flannel-io/flannel#1279, \
        kubernetes/kubernetes#88986), vmxnet3 on port 4789 (projectcalico/calico#4727). Switch off \
        tx-udp_tnl-csum-segmentation at the sender, then tx-checksumming.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (namespace, moved) in outcome.moved(view) {
        let errors = [
            ("IpExt InCsumErrors", moved.ip_ext.in_csum_errors),
            ("Udp InCsumErrors", moved.udp.in_csum_errors),
            ("Udp6 InCsumErrors", moved.udp6.in_csum_errors),
            ("Icmp InCsumErrors", moved.icmp.in_csum_errors),
            ("Tcp InCsumErrors", moved.tcp.in_csum_errors),
        ];
        let received = moved.ip.in_receives.saturating_add(moved.ip6.in_receives);
        outcome.findings.extend(CHECK.counted(
            (namespace, "received packets"),
            &errors,
            "/proc/net/snmp, netstat, snmp6",
            (received, "packets"),
        ));
    }
}
