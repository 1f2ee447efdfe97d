//! OV114: The host does not answer for tenants whose addresses are in the uplink's network.

use std::net::IpAddr;

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View, is_link_local};
use netstate::route_table::covers;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV114",
    title: "Hosts of the link do not find a tenant",
    severity: Severity::Info,
    explanation: "The network of a bridge of tenants is inside the IPv6 network of the uplink. \
        Hosts and routers on the uplink take the tenants for neighbours and ask for their \
        hardware addresses, but tenants behind the bridge do not hear them, and the host answers \
        in their place only if proxy_ndp is on and an entry names the address. It is an error if a \
        host that was read asks in vain. Route the network to this host instead, or let ndppd \
        answer; a program that answers is not seen here, so without such evidence it is a remark.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let forwards = namespace.sysctls.get("net/ipv6/conf/all/forwarding");
        if forwards.is_none_or(|on| on == "0") {
            continue;
        }
        for bridge in view.devices_of(at).filter(|device| device.kind() == "bridge") {
            for uplink in view.devices_of(at).filter(|device| device.place != bridge.place) {
                beside(view, outcome, bridge, uplink);
            }
        }
    }
}

/// Global networks of IPv6 of a device.
fn networks<'a>(device: DeviceRef<'a>) -> impl Iterator<Item = (IpAddr, u8)> + use<'a> {
    let own = device.addresses().filter(|known| known.address.is_ipv6());
    own.filter(|known| !is_link_local(known.address)).map(|known| (known.address, known.prefix))
}

fn beside<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
    bridge: DeviceRef<'a>,
    uplink: DeviceRef<'a>,
) {
    let is_uplink = uplink.is_nic() && uplink.interface.master.is_none() && uplink.interface.up;
    let inner = networks(bridge).find(|(address, prefix)| {
        networks(uplink).any(|outer| outer.1 > 0 && outer.1 < *prefix && covers(outer, *address))
    });
    let (Some((_, prefix)), true) = (inner, is_uplink) else { return };
    let tenants = view.ports(bridge).filter_map(|port| {
        let peer = view.peer(port)?;
        (peer.place.namespace != port.place.namespace && peer.interface.master.is_none())
            .then_some(peer)
    });
    for tenant in tenants {
        let own = networks(tenant).map(|(address, _)| address);
        let Some(address) =
            own.into_iter().find(|address| inner.is_some_and(|inner| covers(inner, *address)))
        else {
            continue;
        };
        let setting = |name: &str| {
            let path = format!("net/ipv6/conf/{name}/proxy_ndp");
            bridge.namespace.sysctls.get(&path).is_some_and(|value| value != "0")
        };
        // The kernel asks for either of them.
        let is_on = setting("all") || setting(uplink.name());
        let entries = bridge.namespace.proxied.get().map_or(&[][..], Vec::as_slice);
        let has_entry = entries.contains(&(uplink.interface.index, address));
        if is_on && has_entry {
            continue;
        }
        let segment = view.segment(uplink);
        let asks = view
            .devices()
            .find(|device| view.segment(*device) == segment && device.is_silent(address));
        let lacks = match is_on {
            true => format!("no entry for {address} on {}", uplink.name()),
            false => format!("proxy_ndp = 0 on {}", uplink.name()),
        };
        let path = bridge.namespace.path.as_deref();
        let name = quote(uplink.name());
        let mut commands = Vec::new();
        let mut undo = Vec::new();
        if !is_on {
            // Names of devices may contain dots, but no slashes.
            let key = quote(&format!("net/ipv6/conf/{}/proxy_ndp", uplink.name()));
            commands.push(format!("sysctl -w {key}=1"));
            undo.push(format!("sysctl -w {key}=0"));
        }
        if !has_entry {
            commands.push(format!("ip -6 neigh add proxy {address} dev {name}"));
            undo.push(format!("ip -6 neigh del proxy {address} dev {name}"));
        }
        let all = |commands: Vec<String>| {
            let commands: Vec<String> = commands.iter().map(|one| inside(path, one)).collect();
            commands.join(" && ")
        };
        let finding = CHECK
            .on(bridge)
            .evidence(
                format!(
                    "the /{prefix} of {} is inside the network of {}; {address} is {} {}",
                    bridge.name(),
                    uplink.name(),
                    tenant.namespace.label,
                    tenant.name()
                ),
                "RTM_GETADDR",
            )
            .evidence(lacks, "/proc/sys/net/ipv6/conf, RTM_GETNEIGH with NTF_PROXY")
            .by_hand(all(commands), "one entry for each tenant; a restart forgets it", all(undo));
        outcome.add(match asks {
            Some(device) => finding
                .evidence(
                    format!("{} {} asks for it in vain", device.namespace.label, device.name()),
                    "RTM_GETNEIGH: NUD_FAILED, or NUD_INCOMPLETE twice",
                )
                .severity(Severity::Error)
                .cost(Cost::estimated(0.95, "packets from the uplink's network to the tenant")),
            None => finding
                .cost(Cost::estimated(0.3, "packets from the uplink's network to tenants"))
                .confidence(Confidence::Low),
        });
        // One tenant stands for all of its bridge.
        return;
    }
}
