//! Reported defects of offloads that a plan uses.

use netstate::defects::of_udp_segmentation;
use netstate::machine::MachineFacts;
use sys::ethtool::Ethtool;

use crate::path_under_test::PathUnderTest;
use crate::plan::Plan;

/// Returns a note if datagrams shall be sent as GSO packets, and their segmentation is reported to be
/// broken with this kernel and the devices of the client's end.
pub(crate) fn note(plan: &Plan, subjects: &[PathUnderTest]) -> Option<String> {
    // Only --gso uses UDP segmentation.
    if !plan.cells.iter().any(|cell| plan.load(&cell.ask).gso) {
        return None;
    }
    let facts = MachineFacts::read().ok()?;
    let mut drivers: Vec<Option<String>> = subjects.iter().flat_map(drivers).map(Some).collect();
    // Some defects do not depend on the device.
    drivers.push(None);
    note_of(&facts, &drivers)
}

fn note_of(facts: &MachineFacts, drivers: &[Option<String>]) -> Option<String> {
    let mut defects = drivers.iter().filter_map(|one| of_udp_segmentation(facts, one.as_deref()));
    let defect = defects.next()?;
    Some(format!(
        "--gso: a defect of UDP segmentation is reported with this kernel: {} ({}); overlane probe \
         tests a path for it",
        defect.symptom,
        defect.reports()
    ))
}

/// Returns the drivers of the devices of a path in the client's namespace.
fn drivers(subject: &PathUnderTest) -> Vec<String> {
    let Some(place) = subject.places.get(subject.client) else { return Vec::new() };
    let devices = subject.hops.iter().filter(|hop| hop.host == place.name);
    let devices: Vec<&str> = devices.map(|hop| hop.device.as_str()).collect();
    let read = || -> Vec<String> {
        // Without the driver's name only defects of the kernel are found.
        let Ok(ethtool) = Ethtool::open() else { return Vec::new() };
        devices.iter().filter_map(|device| ethtool.driver(device).ok()).collect()
    };
    // Without the drivers, fewer defects are recognised.
    place.netns.run(read).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_is_noted_with_its_driver_and_its_kernel_only() {
        let facts = |kernel: &str| MachineFacts {
            cpu_model: String::new(),
            online_cpus: 1,
            memory_bytes: 1,
            kernel_release: kernel.to_owned(),
            os: String::new(),
            hypervisor: Some("KVM".to_owned()),
        };
        let virtio = [Some("virtio_net".to_owned()), None];
        let note = note_of(&facts("6.17.0-41-generic"), &virtio).unwrap();
        assert!(note.contains("tailscale/tailscale#21335"), "{note}");
        assert_eq!(note_of(&facts("6.17.0-41-generic"), &[None]), None);
        assert_eq!(note_of(&facts("6.18.44"), &virtio), None);
        assert!(note_of(&facts("7.0.0"), &[None]).is_some());
    }
}
