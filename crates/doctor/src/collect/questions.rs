//! Questions to the packet filter about the packets that overlays need: a tunnel's outer packets,
//! packets routed between tunnels and bridges, bridged frames, and ICMP.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use netstate::entry::Knowledge;
use netstate::interface::Interface;
use netstate::route_table::{RouteKind, best_route};
use ruleset::{Connection, Flow, Hook, State, Step, Transport, Tuple, flow};

use super::Subject;
use crate::host::{Filtered, Namespace, OUTSIDE as ANY, Passage, PassageKind};

/// Most questions about one namespace, half of them about outer packets. A node may have a thousand
/// remote ends, and a rule that drops the packets of one of them mostly drops those of many.
const MOST: usize = 200;
/// Tenants of each bridge, and networks behind each tunnel, that are asked about.
const SAMPLES: usize = 3;
/// A port that no rule is likely to name.
const PORT: u16 = 54321;
/// Ports of a tenant that are asked about.
const PORTS: usize = 8;
/// The documentation address of IPv6.
const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
const ECHO: Transport = Transport::Icmp { kind: 8, code: 0 };

/// Packets that the rules are asked about.
pub(super) struct Question {
    pub(super) passage: Passage,
    pub(super) flow: Flow,
    pub(super) path: Vec<Step>,
}

/// Returns the packets that overlays need to pass the rules of a namespace.
pub(super) fn questions(
    listeners: &mut Listeners<'_>,
    namespaces: &[Namespace],
    at: usize,
) -> Vec<Question> {
    let here = &namespaces[at];
    let mut all = Vec::new();
    for namespace in namespaces {
        for tunnel in namespace.tunnels.iter().filter(|tunnel| tunnel.underlay == here.inode) {
            outer(here, namespace, tunnel, &mut all);
        }
    }
    // Leave room for questions about tenants.
    all.truncate(MOST / 2);
    forwarded(listeners, namespaces, here, &mut all);
    outside(namespaces, here, &mut all);
    bridged(namespaces, here, &mut all);
    if is_tenant(namespaces, here) {
        at_tenant(listeners.of(at), here, &mut all);
    }
    all.truncate(MOST);
    all
}

fn links(namespace: &Namespace) -> &[Interface] {
    namespace.interfaces.get().map_or(&[], Vec::as_slice)
}

fn link(namespace: &Namespace, index: u32) -> Option<&Interface> {
    links(namespace).iter().find(|link| link.index == index)
}

/// Outer packets of a tunnel, in both directions, and ICMP about them.
fn outer(
    here: &Namespace,
    owner: &Namespace,
    tunnel: &crate::host::TunnelPaths,
    all: &mut Vec<Question>,
) {
    let Some(vxlan) = link(owner, tunnel.link).and_then(|link| link.vxlan.as_ref()) else { return };
    for (remote, way) in &tunnel.ways {
        // Without a route nothing is sent.
        let Some(way) = way.get() else { continue };
        let Some(nic) = link(here, way.link).filter(|nic| !nic.loopback) else { continue };
        let of_nic = || {
            let addresses = here.addresses.get().into_iter().flatten();
            let mut own = addresses.filter(|known| {
                known.link == nic.index && known.address.is_ipv4() == remote.is_ipv4()
            });
            own.next().map(|known| known.address)
        };
        let local = vxlan.local.filter(|local| local.is_ipv4() == remote.is_ipv4());
        let Some(local) = local.or_else(of_nic) else { continue };
        let outside = |hook| Step::new(hook, Some(nic), None);
        let port = vxlan.port;
        let udp = Transport::Udp;
        let out = [Hook::Output, Hook::Postrouting].map(|hook| Step::new(hook, None, Some(nic)));
        all.push(ask(PassageKind::TunnelOut, (local, *remote, port), udp, (0, nic.index), &out));
        let path = [Hook::Ingress, Hook::Prerouting, Hook::Input].map(outside);
        all.push(ask(PassageKind::TunnelIn, (*remote, local, port), udp, (nic.index, 0), &path));
        if remote.is_ipv4() {
            let icmp = Transport::Icmp { kind: 3, code: 4 };
            let path = [Hook::Ingress, Hook::Prerouting, Hook::Input].map(outside);
            // A router on the way may have any address; the next hop has this one.
            let router = way.via.unwrap_or(*remote);
            let kind = PassageKind::FragmentationNeeded;
            let mut question = ask(kind, (router, local, 0), icmp, (nic.index, 0), &path);
            question.flow.connection = Some(tracked(State::Related));
            all.push(question);
            let next = way.via.unwrap_or(*remote);
            let (kind, arp) = (PassageKind::Resolution, Transport::Arp);
            let path = [Step::new(Hook::ArpInput, Some(nic), None)];
            all.push(ask(kind, (next, local, 0), arp, (nic.index, 0), &path));
            let path = [Step::new(Hook::ArpOutput, None, Some(nic))];
            all.push(ask(kind, (local, next, 0), arp, (0, nic.index), &path));
        } else {
            let asked = Transport::Icmp { kind: 135, code: 0 };
            let path = [Hook::Ingress, Hook::Prerouting, Hook::Input].map(outside);
            let kind = PassageKind::Solicitation;
            let from = way.via.unwrap_or(*remote);
            // The kernel does not track them. Rules that accept or drop new connections mean others.
            let question = ask(kind, (from, local, 0), asked, (nic.index, 0), &path);
            all.push(question);
        }
    }
}

/// Packets between tenants on bridges with an address, and networks behind tunnels.
fn forwarded(
    listeners: &mut Listeners<'_>,
    namespaces: &[Namespace],
    here: &Namespace,
    all: &mut Vec<Question>,
) {
    if here.sysctls.get("net/ipv4/ip_forward").is_none_or(|on| on == "0") {
        return;
    }
    let routes = here.routes.get().map_or(&[][..], Vec::as_slice);
    for tunnel in links(here).iter().filter(|link| link.vxlan.is_some() && link.up) {
        let behind = routes.iter().filter(|route| {
            route.link == Some(tunnel.index)
                && route.kind == RouteKind::Unicast
                && route.to.is_ipv4()
                && route.prefix > 0
        });
        let remotes: Vec<IpAddr> = behind
            .filter_map(|route| {
                // Rules may accept single tenants: one that exists stands for the network.
                let real = addresses(namespaces).find(|known| route.covers(*known));
                real.or_else(|| within(route.to, route.prefix))
            })
            .take(SAMPLES)
            .collect();
        for bridge in links(here).iter().filter(|link| link.bridge.is_some() && link.up) {
            // Each sample may be under a policy of its own, so there are several.
            for tenant in tenants(here, bridge) {
                if bridge.mtu > tunnel.mtu {
                    too_large(here, bridge, tenant, all);
                }
                let services = services(listeners, namespaces, tenant);
                for remote in &remotes {
                    for (from, to, input, output) in
                        [(tenant, *remote, bridge, tunnel), (*remote, tenant, tunnel, bridge)]
                    {
                        let path =
                            [Hook::Prerouting, Hook::Forward, Hook::Postrouting].map(|hook| {
                                let (first, last) =
                                    (hook == Hook::Prerouting, hook == Hook::Postrouting);
                                Step::new(
                                    hook,
                                    (!last).then_some(input),
                                    (!first).then_some(output),
                                )
                            });
                        let devices = (input.index, output.index);
                        let ends = (from, to, PORT);
                        all.push(ask(PassageKind::Forward, ends, Transport::Tcp, devices, &path));
                        let ends = (from, to, 0);
                        all.push(ask(PassageKind::ForwardEcho, ends, ECHO, devices, &path));
                        for port in services.iter().filter(|_| to == tenant) {
                            let (kind, ends) = (PassageKind::ForwardService, (from, to, *port));
                            all.push(ask(kind, ends, Transport::Tcp, devices, &path));
                        }
                    }
                }
            }
        }
    }
}

/// ICMP messages about packets of a tenant that are too large for the tunnel.
fn too_large(here: &Namespace, bridge: &Interface, tenant: IpAddr, all: &mut Vec<Question>) {
    let mut own = here.addresses.get().into_iter().flatten();
    let is_own = |known: &&netstate::entry::Address| {
        known.link == bridge.index && known.address.is_ipv4() && tenant.is_ipv4()
    };
    // The kernel sends them from the bridge's address.
    let Some(own) = own.find(is_own) else { return };
    let icmp = Transport::Icmp { kind: 3, code: 4 };
    let path = [Hook::Output, Hook::Postrouting].map(|hook| Step::new(hook, None, Some(bridge)));
    let (kind, ends) = (PassageKind::FragmentationNeededOut, (own.address, tenant, 0));
    let mut question = ask(kind, ends, icmp, (0, bridge.index), &path);
    question.flow.connection = Some(tracked(State::Related));
    all.push(question);
}

/// Packets between tenants on bridges with an address and the uplink, in both directions, and those
/// to the host's own DHCP and DNS servers. No tunnel is needed.
fn outside(namespaces: &[Namespace], here: &Namespace, all: &mut Vec<Question>) {
    let routes = here.routes.get().map_or(&[][..], Vec::as_slice);
    let uplink = best_route(routes, ANY).and_then(|route| link(here, route.link?));
    let forwards = here.sysctls.get("net/ipv4/ip_forward").is_some_and(|on| on == "1");
    for bridge in links(here).iter().filter(|link| link.bridge.is_some() && link.up) {
        let own: Vec<IpAddr> = (here.addresses.get().into_iter().flatten())
            .filter(|known| known.link == bridge.index && known.address.is_ipv4())
            .map(|known| known.address)
            .collect();
        for (tenant, is_seen) in behind(namespaces, here, bridge, &own) {
            host_services(here, bridge, &own, tenant, all);
            // A guest that was not read may be meant to stay inside.
            let way = uplink.filter(|up| up.index != bridge.index && forwards && is_seen);
            let Some(uplink) = way else { continue };
            let path = |input: &Interface, output: &Interface| {
                [
                    Step::new(Hook::Prerouting, Some(input), None),
                    Step::new(Hook::Forward, Some(input), Some(output)),
                    Step::new(Hook::Postrouting, None, Some(output)),
                ]
            };
            let (kind, devices) = (PassageKind::Outside, (bridge.index, uplink.index));
            let ends = (tenant, ANY, PORT);
            let mut first = ask(kind, ends, Transport::Tcp, devices, &path(bridge, uplink));
            first.flow.any_address = Some(ANY);
            let (kind, devices) = (PassageKind::OutsideReply, (uplink.index, bridge.index));
            let ends = (ANY, tenant, PORT);
            // An answer enters with the tenant's address if nothing is translated, and has it again
            // at the hook that forwards.
            let forward = &path(uplink, bridge)[1..];
            let mut answer = ask(kind, ends, Transport::Tcp, devices, forward);
            answer.flow.connection =
                Some(Connection { is_reply: true, ..tracked(State::Established) });
            answer.flow.any_address = Some(ANY);
            all.extend([first, answer]);
        }
    }
}

/// Tenants behind a bridge whose default route leads to it; without any, a neighbour of the bridge,
/// which `false` marks.
fn behind(
    namespaces: &[Namespace],
    here: &Namespace,
    bridge: &Interface,
    own: &[IpAddr],
) -> Vec<(IpAddr, bool)> {
    let has_port = |peer: u32| {
        links(here).iter().any(|port| port.index == peer && port.master == Some(bridge.index))
    };
    let mut tenants = Vec::new();
    for tenant in namespaces.iter().filter(|other| other.inode != here.inode) {
        let routes = tenant.routes.get().map_or(&[][..], Vec::as_slice);
        let Some(default) = best_route(routes, ANY).filter(|route| route.prefix == 0) else {
            continue;
        };
        let nic = default.link.and_then(|index| link(tenant, index));
        let of = nic.and_then(|nic| tenant.devices.get(&nic.index)?.link_namespace);
        let peer = nic.and_then(|nic| nic.link).filter(|peer| has_port(*peer));
        if of != Some(here.inode)
            || peer.is_none()
            || !default.via.is_some_and(|via| own.contains(&via))
        {
            continue;
        }
        let mut addresses = tenant.addresses.get().into_iter().flatten();
        let of_nic =
            addresses.find(|known| Some(known.link) == default.link && known.address.is_ipv4());
        tenants.extend(of_nic.map(|known| (known.address, true)));
    }
    tenants.truncate(SAMPLES);
    if tenants.is_empty() && !own.is_empty() {
        tenants.extend(self::tenants(here, bridge).first().map(|first| (*first, false)));
    }
    tenants
}

/// UDP packets of a tenant to the host's DHCP and DNS servers.
fn host_services(
    here: &Namespace,
    bridge: &Interface,
    own: &[IpAddr],
    tenant: IpAddr,
    all: &mut Vec<Question>,
) {
    /// Ports of DNS and DHCP.
    const SERVED: [u16; 2] = [53, 67];
    for port in SERVED {
        let sockets = here.udp_sockets.get().into_iter().flatten();
        let mut serving = sockets.filter(|socket| {
            let at = socket.address;
            let is_here = own.contains(&at) || (at.is_unspecified() && !own.is_empty());
            socket.port == port && !socket.connected && is_here
        });
        let Some(at) = serving.next().and_then(|_| own.first()) else { continue };
        let path = [Hook::Prerouting, Hook::Input].map(|hook| Step::new(hook, Some(bridge), None));
        let ends = (tenant, *at, port);
        all.push(ask(PassageKind::HostService, ends, Transport::Udp, (bridge.index, 0), &path));
    }
}

/// Addresses of tenants in the namespaces that were read.
fn addresses(namespaces: &[Namespace]) -> impl Iterator<Item = IpAddr> {
    let tenants = namespaces.iter().filter(|namespace| is_tenant(namespaces, namespace));
    tenants.flat_map(|namespace| {
        namespace.addresses.get().into_iter().flatten().map(|known| known.address)
    })
}

/// TCP ports on which the tenant with an address listens, if its namespace is read.
fn services(listeners: &mut Listeners<'_>, namespaces: &[Namespace], tenant: IpAddr) -> Vec<u16> {
    let at = namespaces.iter().position(|namespace| {
        let mut addresses = namespace.addresses.get().into_iter().flatten();
        addresses.any(|known| known.address == tenant)
    });
    at.map(|at| ports(listeners.of(at), tenant)).unwrap_or_default()
}

/// Listening TCP sockets of each namespace, read when they are first needed: several tunnels and
/// the tenant itself ask for the same.
pub(super) struct Listeners<'s> {
    subjects: &'s [Subject],
    /// By position of the namespace.
    read: BTreeMap<usize, Vec<(IpAddr, u16)>>,
}

impl<'s> Listeners<'s> {
    pub(super) fn new(subjects: &'s [Subject]) -> Listeners<'s> {
        Listeners { subjects, read: BTreeMap::new() }
    }

    /// Returns the listening sockets of a namespace. Empty if they cannot be read: then nothing is
    /// asked.
    fn of(&mut self, at: usize) -> &[(IpAddr, u16)] {
        let subjects = self.subjects;
        self.read.entry(at).or_insert_with(|| {
            // A user could open any number of sockets.
            let subject = subjects.get(at).filter(|subject| !subject.is_untrusted);
            let read = subject.map(|subject| subject.netns.run(netstate::inet_diag::tcp_listeners));
            read.and_then(Result::ok).and_then(Result::ok).unwrap_or_default()
        })
    }
}

/// The first few ports at which an address accepts connections.
fn ports(listeners: &[(IpAddr, u16)], address: IpAddr) -> Vec<u16> {
    let own = listeners.iter().filter(|(at, _)| at.is_unspecified() || *at == address);
    let mut ports: Vec<u16> = own.map(|(_, port)| *port).collect();
    ports.sort_unstable();
    ports.dedup();
    ports.truncate(PORTS);
    ports
}

/// Whether a namespace belongs to a tenant: its veth leads to another namespace, it has no bridge,
/// and no tunnel's packets pass it.
fn is_tenant(namespaces: &[Namespace], here: &Namespace) -> bool {
    let mut tunnels = namespaces.iter().flat_map(|namespace| &namespace.tunnels);
    links(here).iter().all(|link| link.bridge.is_none() && link.vxlan.is_none())
        && tunnels.all(|tunnel| tunnel.underlay != here.inode)
}

/// Packets to and from a tenant, in its own namespace.
fn at_tenant(listeners: &[(IpAddr, u16)], here: &Namespace, all: &mut Vec<Question>) {
    let is_veth = |link: &&Interface| link.kind.as_deref() == Some("veth") && link.up;
    for nic in links(here).iter().filter(is_veth).filter(|link| link.link_netns.is_some()) {
        let addresses = here.addresses.get().into_iter().flatten();
        let mut own = addresses.filter(|known| {
            let is_usable = matches!(known.address, IpAddr::V4(four) if !four.is_link_local());
            known.link == nic.index && is_usable
        });
        let Some(known) = own.next() else { continue };
        let own = known.address;
        // Stands for any other host of the network.
        let other = within(own, known.prefix).filter(|other| *other != own).unwrap_or(ANY);
        let input = [Hook::Ingress, Hook::Prerouting, Hook::Input];
        let input = input.map(|hook| Step::new(hook, Some(nic), None));
        let output = [Hook::Output, Hook::Postrouting];
        let output = output.map(|hook| Step::new(hook, None, Some(nic)));
        let begun = all.len();
        let (kind, devices) = (PassageKind::TenantEcho, (nic.index, 0));
        all.push(ask(kind, (other, own, 0), ECHO, devices, &input));
        all.push(ask(kind, (own, other, 0), ECHO, (0, nic.index), &output));
        for port in ports(listeners, own) {
            let (kind, ends) = (PassageKind::TenantService, (other, own, port));
            all.push(ask(kind, ends, Transport::Tcp, devices, &input));
        }
        for question in &mut all[begun..] {
            question.flow.any_address = Some(other);
        }
    }
}

/// Addresses of tenants on a bridge: neighbours that have answered, else one of the network.
fn tenants(here: &Namespace, bridge: &Interface) -> Vec<IpAddr> {
    let known = here.neighbours.get().into_iter().flatten();
    let mut tenants: Vec<IpAddr> = known
        .filter(|known| known.link == bridge.index && known.address.is_ipv4())
        .filter(|known| !matches!(known.knowledge, Knowledge::Failed | Knowledge::Incomplete))
        .map(|known| known.address)
        .take(SAMPLES)
        .collect();
    if tenants.is_empty() {
        let own = here.addresses.get().into_iter().flatten();
        let own = own.filter(|known| known.link == bridge.index && known.address.is_ipv4());
        tenants.extend(own.filter_map(|known| within(known.address, known.prefix)).take(1));
    }
    tenants
}

/// Frames that only cross a bridge.
fn bridged(namespaces: &[Namespace], here: &Namespace, all: &mut Vec<Question>) {
    let on = here.sysctls.get("net/bridge/bridge-nf-call-iptables").is_some_and(|on| on == "1");
    let on6 = here.sysctls.get("net/bridge/bridge-nf-call-ip6tables").is_some_and(|on| on == "1");
    for bridge in links(here).iter().filter(|link| link.up) {
        let Some(settings) = bridge.bridge else { continue };
        let ports: Vec<&Interface> =
            links(here).iter().filter(|link| link.master == Some(bridge.index)).collect();
        let [first, second, ..] = ports.as_slice() else { continue };
        let own = here.addresses.get().into_iter().flatten();
        let network = own
            .filter(|known| known.link == bridge.index && known.address.is_ipv4())
            .find_map(|known| within(known.address, known.prefix));
        let address = network.unwrap_or(ANY);
        let index = bridge.index;
        // A tunnel and a tenant, in both directions.
        let tunnel = ports.iter().find(|port| port.vxlan.is_some()).unwrap_or(first);
        let tenant = ports.iter().find(|port| port.index != tunnel.index).unwrap_or(second);
        for (from, to) in [(tunnel, tenant), (tenant, tunnel)] {
            let nic = tenant_nic(namespaces, here, from);
            let frame = sent_by(nic, Step::between_ports(from, to));
            let mut path = frame.to_vec();
            if on || settings.call_iptables {
                path.extend(Step::by_br_netfilter(bridge, Some(from), to));
            }
            for (kind, transport, path) in [
                (PassageKind::Bridged, Transport::Tcp, path.as_slice()),
                (PassageKind::BridgedArp, Transport::Arp, frame.as_slice()),
            ] {
                let port = if transport == Transport::Arp { 0 } else { PORT };
                let mut question =
                    ask(kind, (address, address, port), transport, (index, index), path);
                question.flow.any_address = Some(address);
                all.push(question);
            }
            // A filter may let a tenant's own address pass only.
            if let Some(own) = address_of(namespaces, here, from) {
                let (kind, arp) = (PassageKind::BridgedArp, Transport::Arp);
                let other = within(own.address, own.prefix).unwrap_or(ANY);
                let mut question = ask(kind, (own.address, other, 0), arp, (index, index), &frame);
                question.flow.any_address = Some(other);
                all.push(question);
            }
            let mut path = frame.to_vec();
            if on6 {
                path.extend(Step::by_br_netfilter(bridge, Some(from), to));
            }
            let ends = (ANY6, ANY6, PORT);
            let mut question =
                ask(PassageKind::Bridged, ends, Transport::Tcp, (index, index), &path);
            question.flow.any_address = Some(ANY6);
            all.push(question);
        }
        // A filter may name each tenant's own hardware address.
        let others =
            ports.iter().filter(|port| ![tunnel.index, tenant.index].contains(&port.index));
        let named = others.filter_map(|port| Some((port, tenant_nic(namespaces, here, port)?)));
        for (port, nic) in named.take(SAMPLES) {
            let frame = sent_by(Some(nic), Step::between_ports(port, tunnel));
            let (kind, ends) = (PassageKind::Bridged, (address, address, PORT));
            let mut question = ask(kind, ends, Transport::Tcp, (index, index), &frame);
            question.flow.any_address = Some(address);
            all.push(question);
        }
    }
}

/// Hooks with the hardware address of the tenant that sends the frames.
fn sent_by(nic: Option<&Interface>, mut frame: [Step; 2]) -> [Step; 2] {
    for step in &mut frame {
        step.hardware_source = nic.and_then(|nic| nic.mac);
    }
    frame
}

/// The namespace of the tenant behind a port of a bridge, if it is read.
fn tenant_of<'n>(
    namespaces: &'n [Namespace],
    here: &Namespace,
    port: &Interface,
) -> Option<&'n Namespace> {
    let inode = here.devices.get(&port.index)?.link_namespace?;
    namespaces.iter().find(|other| other.inode == inode && inode != here.inode)
}

/// The device of the tenant behind a port of a bridge.
fn tenant_nic<'n>(
    namespaces: &'n [Namespace],
    here: &Namespace,
    port: &Interface,
) -> Option<&'n Interface> {
    link(tenant_of(namespaces, here, port)?, port.link?)
}

/// The address of the tenant behind a port of a bridge.
fn address_of<'n>(
    namespaces: &'n [Namespace],
    here: &Namespace,
    port: &Interface,
) -> Option<&'n netstate::entry::Address> {
    let peer = port.link?;
    let known = tenant_of(namespaces, here, port)?.addresses.get()?;
    known.iter().find(|known| known.link == peer && known.address.is_ipv4())
}

/// An address inside a network, neither the network's own nor the first, which routers have.
fn within(network: IpAddr, prefix: u8) -> Option<IpAddr> {
    let IpAddr::V4(address) = network else { return None };
    let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0);
    let first = u32::from(address) & mask;
    let other =
        if prefix >= 31 { u32::from(address) } else { first + if prefix == 30 { 2 } else { 3 } };
    Some(IpAddr::V4(other.into()))
}

/// An untranslated connection.
pub(super) fn tracked(state: State) -> Connection {
    Connection { state, is_reply: false, status: Some(0), mark: Some(0), zone: 0 }
}

/// A question about the first packet of a connection.
fn ask(
    kind: PassageKind,
    (from, to, port): (IpAddr, IpAddr, u16),
    transport: Transport,
    (input, output): (u32, u32),
    path: &[Step],
) -> Question {
    let tuple = Tuple { source: (from, PORT), destination: (to, port) };
    // An address of this host is at the end of the path without a device.
    let kind_of = |is_local| if is_local { flow::LOCAL } else { flow::UNICAST };
    let flow = Flow {
        tuple,
        other: tuple.reversed(),
        any_source_port: true,
        any_address: None,
        asks_nat: false,
        transport,
        connection: Some(tracked(State::New)),
        mark: 0,
        address_types: vec![(from, kind_of(input == 0)), (to, kind_of(output == 0))],
    };
    let verdict = Filtered::Undecided;
    let passage = Passage {
        kind,
        from,
        to,
        port,
        input,
        output,
        verdict,
        longest: None,
        mark: 0,
        routed: None,
    };
    Question { passage, flow, path: path.to_vec() }
}
