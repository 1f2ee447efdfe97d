//! Reported offload defects: feature, conditions, source and date of the last check. The list is
//! short on purpose: an entry needs a report that names its conditions, and the conditions must be
//! recognisable on a host.

use netstate::interface::Vxlan;

use crate::finding::Severity;
use crate::view::DeviceRef;

/// A tunnel over one underlay device, with driver, kernel and hypervisor.
pub struct Case<'a> {
    /// Attributes of the tunnel's device.
    pub vxlan: &'a Vxlan,
    /// Underlay device of the tunnel's outer packets.
    pub nic: DeviceRef<'a>,
    /// Name of the underlay device's driver, as in `ethtool -i`.
    pub driver: Option<&'a str>,
    /// Kernel version, major and minor; `None` if the release has another form.
    pub kernel: Option<(u32, u32)>,
    /// Hypervisor, `""` on bare metal.
    pub hypervisor: &'a str,
}

/// The device of a case that has the feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefectiveDevice {
    /// The VXLAN device itself.
    Tunnel,
    /// The underlay device below it.
    Nic,
}

/// An offload that was reported to be broken under certain conditions.
pub struct Defect {
    /// The feature to switch off.
    pub feature: &'static str,
    /// Device on which the feature is to be switched off.
    pub device: DefectiveDevice,
    /// Whether a case meets the report's conditions.
    pub applies: fn(&Case<'_>) -> bool,
    /// What users observe, as a clause for the finding.
    pub symptom: &'static str,
    /// Issues of the report: `projectcalico/calico#3145`.
    pub source: &'static str,
    /// Month in which the report was last checked.
    pub as_of: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Share of the tunnel's packets that are affected, according to the report.
    pub cost: f64,
}

const CHECKSUM: &str = "tx-checksum-ip-generic";

/// All known defects.
pub const DEFECTS: &[Defect] = &[
    // NAT rewrote the checksum field of UDP packets without checksum. Fixed by "netfilter: nat:
    // never update the UDP checksum when it's 0" in Linux 5.7.
    Defect {
        feature: CHECKSUM,
        device: DefectiveDevice::Tunnel,
        applies: |case| {
            let chains = case.nic.namespace.chains.get().map(Vec::as_slice).unwrap_or_default();
            case.kernel.is_some_and(|kernel| kernel < (5, 7))
                && !case.vxlan.checksum
                && chains.iter().any(|chain| chain.table.to_ascii_lowercase().contains("nat"))
        },
        symptom: "masqueraded tunnel packets have wrong checksums: connections start after 1, 3 or \
            63 s",
        source: "projectcalico/calico#3145, kubernetes/kubernetes#88986",
        as_of: "2026-11",
        severity: Severity::Error,
        cost: 0.5,
    },
    Defect {
        feature: CHECKSUM,
        device: DefectiveDevice::Nic,
        applies: |case| {
            case.hypervisor.to_ascii_lowercase().contains("vmware")
                && case.driver == Some("vmxnet3")
                && [4789, 8472].contains(&case.vxlan.port)
        },
        symptom: "the virtual switch drops all packets except ICMP on the well-known ports; other \
            ports (4799) work",
        source: "projectcalico/calico#9433, #7040, #4727",
        as_of: "2026-11",
        severity: Severity::Warn,
        cost: 0.9,
    },
    Defect {
        feature: CHECKSUM,
        device: DefectiveDevice::Tunnel,
        applies: |case| {
            case.kernel.is_some_and(|kernel| kernel >= (6, 12))
                && case.nic.interface.kind.as_deref() == Some("bond")
        },
        symptom: "50 to 300 Mbit/s over a bond capable of 9 Gbit/s",
        source: "projectcalico/calico#11435",
        as_of: "2026-11",
        severity: Severity::Info,
        cost: 0.3,
    },
    Defect {
        feature: "tx-checksum-ipv4",
        device: DefectiveDevice::Nic,
        applies: |case| case.driver == Some("ice"),
        symptom: "outer UDP checksums of tunnels are wrong; a single stream is slow",
        source: "metal-stack/metal-images#429",
        as_of: "2026-11",
        severity: Severity::Info,
        cost: 0.2,
    },
];

/// Major and minor number of a kernel release (`6.1.0-29-amd64`).
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_versions() {
        assert_eq!(kernel_version("6.1.0-29-amd64"), Some((6, 1)));
        assert_eq!(kernel_version("5.7"), Some((5, 7)));
        assert_eq!(kernel_version("5.10-rc3"), Some((5, 10)));
        assert_eq!(kernel_version("unknown"), None);
    }

    #[test]
    fn every_defect_has_a_source_and_a_date() {
        for defect in DEFECTS {
            assert!(defect.source.contains('#'), "{}", defect.source);
            assert!(defect.as_of.starts_with("20"), "{}", defect.as_of);
        }
    }
}
