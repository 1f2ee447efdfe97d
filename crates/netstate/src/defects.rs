//! Reported offload defects: feature, conditions, sources, and the packets that show them. The list
//! is short on purpose: an entry needs a report that names its conditions, and the conditions must
//! be recognisable on a host. A report is no proof for this machine: `overlane probe` tests it.

use crate::interface::Vxlan;
use crate::machine::MachineFacts;

/// Version of a kernel: major, minor, patch.
pub type Kernel = (u32, u32, u32);

/// A device that sends packets, with its kernel and hypervisor.
#[derive(Debug, Clone, Copy, Default)]
pub struct Circumstances<'a> {
    /// Version of the kernel; `None` if the release has another form.
    pub kernel: Option<Kernel>,
    /// Hypervisor; `""` on bare metal or if unknown.
    pub hypervisor: &'a str,
    /// Driver of the device by which packets leave, as in `ethtool -i`.
    pub driver: Option<&'a str>,
    /// Kind of that device (`bond`).
    pub kind: Option<&'a str>,
    /// Attributes of the tunnel's device, if the packets are in a tunnel.
    pub vxlan: Option<&'a Vxlan>,
    /// Whether packet filter rules translate addresses there.
    pub translates: bool,
}

/// The device that has the feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefectiveDevice {
    /// The VXLAN device itself.
    Tunnel,
    /// The device by which the outer packets leave.
    Nic,
}

/// Effect on the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// They arrive, but more slowly.
    Slow,
    /// Some of them do not arrive, under conditions that are not visible on the host.
    Lossy,
    /// They do not arrive.
    Lost,
}

/// Packets that show a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    /// UDP GSO packets.
    UdpSegmentation,
    /// Packets with a partial checksum to a tunnel's port.
    PartialToTunnelPort,
    /// Packets inside VXLAN with a partial inner checksum.
    PartialInTunnel,
    /// Packets inside VXLAN with an outer checksum.
    OuterChecksum,
}

/// An offload that was reported to be broken under certain conditions.
#[derive(Debug)]
pub struct Defect {
    /// The feature to switch off.
    pub feature: &'static str,
    /// Device on which the feature is to be switched off.
    pub device: DefectiveDevice,
    /// Whether the report's conditions are met.
    pub applies: fn(&Circumstances<'_>) -> bool,
    /// Packets that show it.
    pub shows: Shows,
    /// Effect that users observe, as a clause.
    pub symptom: &'static str,
    /// Reports, the first one with most details.
    pub sources: &'static [&'static str],
    /// Month in which the reports were last checked.
    pub as_of: &'static str,
    /// Effect according to the reports.
    pub effect: Effect,
    /// Share of the packets that are affected, according to the reports.
    pub cost: f64,
}

const CHECKSUM: &str = "tx-checksum-ip-generic";
const UDP_SEGMENTATION: &str = "tx-udp-segmentation";

/// All known defects.
pub const DEFECTS: &[Defect] = &[
    // NAT rewrote the checksum field of UDP packets without checksum. Fixed by "netfilter: nat:
    // never update the UDP checksum when it's 0" in Linux 5.7.
    Defect {
        feature: CHECKSUM,
        device: DefectiveDevice::Tunnel,
        applies: |case| {
            case.kernel.is_some_and(|kernel| kernel < (5, 7, 0))
                && case.vxlan.is_some_and(|vxlan| !vxlan.checksum)
                && case.translates
        },
        shows: Shows::PartialInTunnel,
        symptom: "masqueraded tunnel packets have wrong checksums: connections start after 1, 3 or \
            63 s",
        sources: &[
            "https://github.com/projectcalico/calico/issues/3145",
            "https://github.com/kubernetes/kubernetes/issues/88986",
            "https://github.com/flannel-io/flannel/issues/1279",
        ],
        as_of: "2026-11",
        effect: Effect::Lost,
        cost: 0.5,
    },
    Defect {
        feature: CHECKSUM,
        device: DefectiveDevice::Nic,
        applies: |case| {
            case.hypervisor.to_ascii_lowercase().contains("vmware")
                && case.driver == Some("vmxnet3")
                && case.vxlan.is_some_and(|vxlan| [4789, 8472].contains(&vxlan.port))
        },
        shows: Shows::PartialToTunnelPort,
        symptom: "the virtual switch drops all packets except ICMP on the well-known ports; other \
            ports (4799) work",
        sources: &[
            "https://github.com/projectcalico/calico/issues/9433",
            "https://github.com/projectcalico/calico/issues/7040",
            "https://github.com/projectcalico/calico/issues/4727",
            "https://github.com/flannel-io/flannel/issues/2388",
        ],
        as_of: "2026-11",
        effect: Effect::Lossy,
        cost: 0.9,
    },
    Defect {
        feature: CHECKSUM,
        device: DefectiveDevice::Tunnel,
        applies: |case| {
            case.kernel.is_some_and(|kernel| kernel >= (6, 12, 0))
                && case.kind == Some("bond")
                && case.vxlan.is_some()
        },
        shows: Shows::PartialInTunnel,
        symptom: "50 to 300 Mbit/s over a bond capable of 9 Gbit/s",
        sources: &["https://github.com/projectcalico/calico/issues/11435"],
        as_of: "2026-11",
        effect: Effect::Slow,
        cost: 0.3,
    },
    Defect {
        feature: "tx-checksum-ipv4",
        device: DefectiveDevice::Nic,
        applies: |case| case.driver == Some("ice") && case.vxlan.is_some(),
        shows: Shows::OuterChecksum,
        symptom: "outer UDP checksums of tunnels are wrong; a single stream is slow",
        sources: &["https://github.com/metal-stack/metal-images/issues/429"],
        as_of: "2026-11",
        effect: Effect::Slow,
        cost: 0.2,
    },
    // Brought by b10b446 in 7.0-rc1, fixed by 78effd8 and 5f17ae0; the client of the report works
    // around it up to 7.1.4.
    Defect {
        feature: UDP_SEGMENTATION,
        device: DefectiveDevice::Nic,
        applies: |case| case.kernel.is_some_and(|kernel| ((7, 0, 0)..(7, 1, 5)).contains(&kernel)),
        shows: Shows::UdpSegmentation,
        symptom: "GSO packets with equal segments get wrong UDP headers and checksums, by driver",
        sources: &[
            "https://github.com/tailscale/tailscale/pull/19918",
            "https://github.com/tailscale/tailscale/issues/19777",
        ],
        as_of: "2026-11",
        effect: Effect::Lossy,
        cost: 0.5,
    },
    Defect {
        feature: UDP_SEGMENTATION,
        device: DefectiveDevice::Nic,
        applies: |case| {
            let guest = ["kvm", "qemu"];
            let hypervisor = case.hypervisor.to_ascii_lowercase();
            case.kernel.is_some_and(|(major, minor, _)| (major, minor) == (6, 17))
                && case.driver == Some("virtio_net")
                && guest.iter().any(|name| hypervisor.contains(name))
        },
        shows: Shows::UdpSegmentation,
        symptom: "2.2 instead of 460 Mbit/s: the host cuts the guest's UDP GSO packets wrongly",
        sources: &["https://github.com/tailscale/tailscale/issues/21335"],
        as_of: "2026-11",
        effect: Effect::Lossy,
        cost: 0.5,
    },
];

impl Defect {
    /// Returns the reports, without the site's address: `tailscale/tailscale#21335`.
    pub fn reports(&self) -> String {
        let short = |url: &&str| {
            let path = url.trim_start_matches("https://github.com/");
            path.replace("/issues/", "#").replace("/pull/", "#")
        };
        self.sources.iter().map(short).collect::<Vec<_>>().join(", ")
    }
}

/// Returns the version of a kernel release (`6.1.0-29-amd64`).
pub fn kernel_version(release: &str) -> Option<Kernel> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let (major, minor) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    // `5.10-rc3` has none.
    let patch = release.splitn(3, '.').nth(2).unwrap_or_default();
    let digits = patch.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    Some((major, minor, digits.parse().unwrap_or(0)))
}

/// Returns a defect of UDP segmentation that this machine may have, whatever its devices are, or
/// with a device of this driver.
pub fn of_udp_segmentation(facts: &MachineFacts, driver: Option<&str>) -> Option<&'static Defect> {
    let case = Circumstances {
        kernel: kernel_version(&facts.kernel_release),
        hypervisor: facts.hypervisor.as_deref().unwrap_or_default(),
        driver,
        ..Circumstances::default()
    };
    DEFECTS.iter().find(|defect| defect.shows == Shows::UdpSegmentation && (defect.applies)(&case))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_versions() {
        assert_eq!(kernel_version("6.1.0-29-amd64"), Some((6, 1, 0)));
        assert_eq!(kernel_version("6.17.0-41-generic"), Some((6, 17, 0)));
        assert_eq!(kernel_version("7.0.2-6-pve"), Some((7, 0, 2)));
        assert_eq!(kernel_version("5.7"), Some((5, 7, 0)));
        assert_eq!(kernel_version("5.10-rc3"), Some((5, 10, 0)));
        assert_eq!(kernel_version("unknown"), None);
    }

    #[test]
    fn every_defect_has_sources_and_a_date() {
        for defect in DEFECTS {
            assert!(!defect.sources.is_empty(), "{}", defect.symptom);
            for source in defect.sources {
                let number = source.rsplit('/').next().unwrap();
                assert!(source.starts_with("https://github.com/"), "{source}");
                assert!(number.parse::<u32>().is_ok(), "{source}");
            }
            assert!(defect.reports().contains('#') && !defect.reports().contains("://"));
            assert!(defect.as_of.starts_with("20"), "{}", defect.as_of);
            assert!((0.0..=1.0).contains(&defect.cost));
        }
    }

    fn facts(kernel: &str, hypervisor: Option<&str>) -> MachineFacts {
        MachineFacts {
            cpu_model: String::new(),
            online_cpus: 1,
            memory_bytes: 1,
            kernel_release: kernel.to_owned(),
            os: String::new(),
            hypervisor: hypervisor.map(str::to_owned),
        }
    }

    #[test]
    fn a_defect_applies_within_its_kernels_only() {
        let source = |kernel, hypervisor, driver| {
            let defect = of_udp_segmentation(&facts(kernel, hypervisor), driver);
            defect.map(|defect| defect.sources[0].rsplit('/').next().unwrap())
        };
        for (kernel, found) in [
            ("6.18.44", None),
            ("6.19.9", None),
            ("7.0.0", Some("19918")),
            ("7.0.2-6-pve", Some("19918")),
            ("7.1.4", Some("19918")),
            ("7.1.5", None),
            ("7.2.0", None),
        ] {
            assert_eq!(source(kernel, None, None), found, "{kernel}");
        }
        let kernel = "6.17.0-41-generic";
        assert_eq!(source(kernel, Some("KVM"), Some("virtio_net")), Some("21335"));
        assert_eq!(source(kernel, Some("KVM"), Some("veth")), None);
        assert_eq!(source(kernel, None, Some("virtio_net")), None);
        assert_eq!(source("6.16.1", Some("KVM"), Some("virtio_net")), None);
    }

    #[test]
    fn defects_of_tunnels_need_their_port_or_translation() {
        let applies = |case: &Circumstances<'_>| {
            DEFECTS.iter().filter(|defect| (defect.applies)(case)).count()
        };
        let vxlan = |port| Vxlan { port, ..Vxlan::default() };
        let (own, other) = (vxlan(4789), vxlan(4799));
        let vmware = Circumstances {
            kernel: Some((6, 1, 0)),
            hypervisor: "VMware, Inc.",
            driver: Some("vmxnet3"),
            vxlan: Some(&own),
            ..Circumstances::default()
        };
        assert_eq!(applies(&vmware), 1);
        assert_eq!(applies(&Circumstances { vxlan: Some(&other), ..vmware }), 0);
        assert_eq!(applies(&Circumstances { vxlan: None, ..vmware }), 0);
        let old = Circumstances {
            kernel: Some((5, 4, 0)),
            translates: true,
            vxlan: Some(&other),
            ..Circumstances::default()
        };
        assert_eq!(applies(&old), 1);
        assert_eq!(applies(&Circumstances { translates: false, ..old }), 0);
        assert_eq!(applies(&Circumstances { kernel: Some((5, 7, 0)), ..old }), 0);
    }
}
