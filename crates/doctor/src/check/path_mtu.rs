//! OV070: The path MTU to a VTEP is below the MTU of the link.

use netstate::interface::vxlan_overhead;

use super::{Check, CheckOutcome, Cost, Severity, View, ip_command};
use settings::command::inside;

pub(super) const CHECK: Check = Check {
    code: "OV070",
    title: "The path MTU to a remote end is too small",
    severity: Severity::Error,
    explanation: "The kernel has an MTU for the route to a remote VTEP that is below the MTU of the \
        link, and full-size packets of the overlay do not fit. Usually it was learned: an ICMP \
        message (fragmentation needed) about any packet to that host stays in the route cache, ten \
        minutes by default, and applies to the tunnel, too. `ip route get` shows the time left as \
        expires. Remove the entry and look for the sender of the message. Do not lower MTUs, which \
        would outlast the entry. Without expires, the route itself has the MTU.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, _) in view.fixed_tunnels() {
        for underlay in view.underlays(tunnel) {
            let link = underlay.nic.interface.mtu;
            let Some(known) = underlay.way.mtu.filter(|mtu| *mtu < link) else { continue };
            let needed = tunnel.interface.mtu.saturating_add(vxlan_overhead(underlay.remote));
            if needed <= known {
                continue;
            }
            let path = underlay.nic.namespace.path.as_deref();
            let ip = ip_command(underlay.remote);
            outcome.add(
                CHECK
                    .on(tunnel)
                    .evidence(
                        format!(
                            "path MTU to {}: {known}{}; {} {} has {link}",
                            underlay.remote,
                            learned(underlay.way.expires_s),
                            underlay.nic.namespace.label,
                            underlay.nic.name()
                        ),
                        "RTM_GETROUTE, IFLA_MTU",
                    )
                    .evidence(
                        format!("{} needs {needed} with its headers", tunnel.name()),
                        "IFLA_MTU",
                    )
                    .cost(Cost::estimated(1.0, "all packets of full size to this remote"))
                    .by_hand(
                        inside(path, &format!("{ip} route flush cache")),
                        "the entry comes back if a router still sends ICMP about its MTU: find the \
                         sender with tcpdump; a route with a fixed MTU stays",
                        "not needed: the kernel learns path MTUs again".to_owned(),
                    ),
            );
        }
    }
}

/// A configured MTU does not expire.
fn learned(expires_s: Option<u32>) -> String {
    expires_s.map_or_else(String::new, |seconds| format!(", learned, expires in {seconds} s"))
}
