//! Offloads that were reported to be broken: what, where, by whom, and when the
//! report was last looked at. Short on purpose: an entry has to be reported with
//! what it applies to, and to be recognisable from a host.

use netstate::interface::Vxlan;

use crate::finding::Severity;
use crate::view::Spot;

/// A tunnel over one underlay device, and what they are on.
pub struct Case<'a> {
    /// Attributes of the tunnel's device.
    pub vxlan: &'a Vxlan,
    /// Underlay device that the tunnel's outer packets leave by.
    pub nic: Spot<'a>,
    /// Name of that device's driver, as `ethtool -i` has it.
    pub driver: Option<&'a str>,
    /// Kernel: major and minor number, where its release begins with them.
    pub kernel: Option<(u32, u32)>,
    /// Hypervisor, `""` on bare metal.
    pub hypervisor: &'a str,
}

/// Which device of a case has the feature.
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
    /// Where it is met.
    pub applies: fn(&Case<'_>) -> bool,
    /// What users observe, as a clause for the finding.
    pub symptom: &'static str,
    /// Issues of the report: `projectcalico/calico#3145`.
    pub source: &'static str,
    /// When that was last looked at.
    pub as_of: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Share of the tunnel's packets that suffer, by the report.
    pub cost: f64,
}

const CHECKSUM: &str = "tx-checksum-ip-generic";

/// Every defect that is known here, each with the report it is from.
pub const DEFECTS: &[Defect] = &[
    // NAT rewrote the checksum field of UDP without checksum; mended by "netfilter:
    // nat: never update the UDP checksum when it's 0" in Linux 5.7.
    Defect {
        feature: CHECKSUM,
        device: DefectiveDevice::Tunnel,
        applies: |case| {
            let chains = case.nic.namespace.chains.get().map(Vec::as_slice).unwrap_or_default();
            case.kernel.is_some_and(|kernel| kernel < (5, 7))
                && !case.vxlan.checksum
                && chains.iter().any(|chain| chain.table.to_ascii_lowercase().contains("nat"))
        },
        symptom: "masqueraded tunnel packets have wrong checksums: connections begin after 1, 3 \
                  or 63 s",
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
        symptom: "the virtual switch drops all but ICMP on the well-known ports; others \
                  (4799) work",
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
        symptom: "50 to 300 Mbit/s over a bond where 9 Gbit/s are possible",
        source: "projectcalico/calico#11435",
        as_of: "2026-11",
        severity: Severity::Info,
        cost: 0.3,
    },
    Defect {
        feature: "tx-checksum-ipv4",
        device: DefectiveDevice::Nic,
        applies: |case| case.driver == Some("ice"),
        symptom: "outer UDP checksums of tunnels are computed wrongly; one stream is slow",
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
