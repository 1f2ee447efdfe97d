//! OV120: A device with neighbours neither asks nor answers ARP.

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV120",
    title: "A device does not resolve neighbours",
    severity: Severity::Error,
    explanation: "A device of a tenant or a NIC has the flag NOARP. The kernel then asks for no \
        neighbour's hardware address and answers no request: it sends to neighbours with the \
        device's own address, so no host takes the frames. Runtimes copy the flag from devices \
        that need no addresses (ipvlan in mode l3, dummy devices). It is reported if the device has \
        such a neighbour, or another host asks for its address in vain.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for device in view.devices().filter(|device| device.interface.noarp && device.interface.up) {
        // Tunnels, dummy devices and ipvlan need no neighbours.
        let resolves = ["veth", "macvlan", ""].contains(&device.kind());
        // Two ends in one namespace are no tenant's (Cilium's cilium_host and cilium_net).
        let is_inner =
            view.peer(device).is_some_and(|peer| peer.place.namespace == device.place.namespace);
        let Some(mac) = device.interface.mac.filter(|_| resolves && !is_inner) else { continue };
        let known = device.namespace.neighbours.get().into_iter().flatten();
        let to_itself = known
            .filter(|known| known.link == device.interface.index && known.mac == Some(mac))
            .map(|known| known.address)
            .find(|address| !address.is_multicast() && !address.is_unspecified());
        let evidence = to_itself
            .map(|address| format!("frames to {address} have the device's own address {mac}"))
            .or_else(|| asked(view, device));
        // Nobody needs the device's neighbours.
        let Some(evidence) = evidence else { continue };
        let set = |state: &str| {
            let command = format!("ip link set dev {} arp {state}", quote(device.name()));
            inside(device.namespace.path.as_deref(), &command)
        };
        outcome.add(
            CHECK
                .on(device)
                .evidence("NOARP", "IFLA_FLAGS")
                .evidence(evidence, "RTM_GETNEIGH")
                .cost(Cost::estimated(1.0, "all packets of this device"))
                .by_hand(
                    set("on"),
                    "the program that made the device may make it with the flag again",
                    set("off"),
                ),
        );
    }
}

/// A device on the same segment that gets no answer from this one.
fn asked<'a>(view: &View<'a>, device: DeviceRef<'a>) -> Option<String> {
    let segment = view.segment(device);
    let asking = view.devices().filter(|other| view.segment(*other) == segment).find_map(|other| {
        let address = device.addresses().map(|known| known.address);
        let mut silent = address.filter(|address| other.is_silent(*address));
        Some((other, silent.next()?))
    });
    asking.map(|(other, address)| {
        format!("{} {} gets no answer from {address}", other.namespace.label, other.name())
    })
}
