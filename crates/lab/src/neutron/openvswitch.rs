//! The network that the Open vSwitch agent builds: `br-int` with every port, `br-tun` with the
//! tunnels or `br-vlan` with the NIC, `br-ex` to the outside, and their flows. Tenant ports are
//! behind the agent's firewall, which tracks connections in one zone per network.
//!
//! Source: `neutron/plugins/ml2/drivers/openvswitch/agent` (its bridges' `native` files) and
//! `doc/source/contributor/internals/openvswitch_firewall.rst`. Tables of disabled features (DVR,
//! DHCP and ARP responders, rate limits) are left out. Tunnels are set up as by L2 population:
//! frames of a network go only to hosts that have the network.

use std::net::{IpAddr, Ipv4Addr};

use netstate::Hop;
use packet::ethernet::MacAddr;
use testbed::{Host, NIC, Process, Processes, mac};

use super::linuxbridge::router_port;
use super::{Leg, NODE, Net, NetworkType, ROUTER, Site, TENANT_NIC, TENANT_PORT};
use crate::ovs::{Datapath, Switch, hwaddr, limit_offloads, start_all};
use crate::{Params, Result};

/// The integration bridge.
const INT: &str = "br-int";
/// The tunnel bridge.
const TUN: &str = "br-tun";
/// Provider bridges: for VLANs, and for the flat outside network.
const VLAN: &str = "br-vlan";
const EX: &str = "br-ex";
/// Kernel device that Open vSwitch creates for VXLAN ports on 4789 (`dpif-netlink-rtnl.c`).
const KERNEL_DEVICE: &str = "vxlan_sys_4789";
/// OpenFlow number of a tenant's port, the only tenant port of its host.
const TENANT_OFPORT: u16 = 1;

/// Connects the tenants, the router and the outside by a switch in each host except the outside
/// host.
pub(crate) fn connect(
    site: &Site,
    params: &Params,
    kind: NetworkType,
    datapath: &Datapath,
    tree: &Processes,
) -> Result<Vec<Process>> {
    let user_space = matches!(datapath, Datapath::UserSpace { .. });
    // The user-space datapath cannot encapsulate GSO packets, so disable TSO with tunnels.
    let tso = user_space && kind == NetworkType::Vlan;
    if !user_space && kind == NetworkType::Vxlan {
        for leg in site.legs.iter().filter(|leg| leg.net != Net::Outside) {
            leg.host.address(NIC, leg.underlay[0], 24)?;
            site.node.address(leg.nic, leg.underlay[1], 24)?;
        }
    }
    if user_space {
        for leg in &site.legs {
            let device = if leg.tenant.is_some() { TENANT_NIC } else { NIC };
            limit_offloads(leg.end(), device, tso)?;
            if leg.tenant.is_none() && !tso {
                // GRO would merge segments before the packet socket reads them, and the switch
                // drops frames above the MTU (`netdev_linux_batch_rxq_recv_sock` in
                // `lib/netdev-linux.c`). Tunnelled packets are not merged: no kernel device
                // decapsulates them.
                site.node.set_features(leg.nic, &[("rx-gro", false)])?;
            }
            let (mtu, device) = (leg.net.mtu(params, kind), leg.net.router_device());
            site.node.connect(&router_port(leg.net), &site.router, &device, mtu)?;
            limit_offloads(&site.router, &device, tso)?;
        }
    }
    let mut hosts = vec![&site.node];
    hosts.extend(site.legs.iter().filter(|leg| leg.tenant.is_some()).map(|leg| &leg.host));
    let programs = start_all(tree, &hosts, tso, |switch| {
        let mut host = Bridges::new(switch.host(), datapath);
        for leg in &site.legs {
            if switch.host().name() == leg.host.name() {
                host.tenant_port(leg);
                host.uplink(leg, kind, NIC, [leg.underlay[0], leg.underlay[1]]);
            } else if switch.host().name() == NODE {
                host.router_port(leg.net, leg.net.mtu(params, kind));
                host.uplink(leg, kind, leg.nic, [leg.underlay[1], leg.underlay[0]]);
            }
        }
        host.configure(switch)
    })?;
    for net in site.nets() {
        // In user space the ports are veth pairs, which exist already.
        if user_space {
            break;
        }
        let device = net.router_device();
        site.node.netlink().set_netns(&device, site.router.netns())?;
        site.router.netlink().set_mtu(&device, net.mtu(params, kind))?;
        site.router.netlink().set_up(&device)?;
    }
    Ok(programs)
}

/// A tunnel over a NIC: both endpoint addresses and the peer's MAC address.
struct Tunnel {
    nic: String,
    local: Ipv4Addr,
    remote: Ipv4Addr,
    peer_mac: MacAddr,
}

/// Configuration of one host's switch.
struct Bridges<'a> {
    host: &'a Host,
    datapath: &'a Datapath,
    orders: Vec<Vec<String>>,
    int: Vec<String>,
    tun: Vec<String>,
    /// Flows of the provider's bridges, by name.
    provider: Vec<(&'static str, Vec<String>)>,
    tunnels: Vec<Tunnel>,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Returns the bridge that holds a NIC in user space. Its internal port has the underlay
/// address, which routes encapsulated packets.
fn underlay_bridge(nic: &str) -> String {
    format!("br-{nic}")
}

impl<'a> Bridges<'a> {
    fn new(host: &'a Host, datapath: &'a Datapath) -> Bridges<'a> {
        let mut bridges = Bridges {
            host,
            datapath,
            orders: Vec::new(),
            int: Vec::new(),
            tun: Vec::new(),
            provider: Vec::new(),
            tunnels: Vec::new(),
        };
        bridges.bridge(INT, true);
        bridges.int.extend([
            // LOCAL_SWITCHING, TRANSIENT, ARP_SPOOF, TRANSIENT_EGRESS.
            "table=0,priority=0,actions=resubmit(,60)".to_owned(),
            "table=24,priority=0,actions=drop".to_owned(),
            "table=60,priority=1,actions=NORMAL".to_owned(),
            "table=62,priority=3,actions=NORMAL".to_owned(),
        ]);
        bridges
    }

    fn user_space(&self) -> bool {
        matches!(self.datapath, Datapath::UserSpace { .. })
    }

    fn order(&mut self, text: &str) {
        self.orders.push(words(text));
    }

    /// Adds a bridge. With `secure` it forwards nothing without flows.
    fn bridge(&mut self, name: &str, secure: bool) {
        let kind = self.datapath.kind();
        let mode = if secure { "secure" } else { "standalone" };
        let hwaddr = hwaddr(self.host, name);
        self.order(&format!("add-br {name}"));
        self.order(&format!("set Bridge {name} datapath_type={kind} fail_mode={mode} {hwaddr}"));
    }

    /// Adds a pair of patch ports, `near` on [`INT`] and `far` on `bridge`.
    fn patch(&mut self, near: &str, bridge: &str, far: &str) {
        for (bridge, port, peer) in [(INT, near, far), (bridge, far, near)] {
            self.order(&format!("add-port {bridge} {port}"));
            self.order(&format!("set Interface {port} type=patch options:peer={peer}"));
        }
    }

    /// Adds the tenant's port, with a security group that allows every connection.
    fn tenant_port(&mut self, leg: &Leg) {
        let vlan = leg.net.number();
        self.order(&format!("add-port {INT} {TENANT_PORT} tag={vlan}"));
        self.order(&format!("set Interface {TENANT_PORT} ofport_request={TENANT_OFPORT}"));
        self.int.extend(firewall(vlan, mac(leg.end().name(), TENANT_NIC), leg.net.end()));
    }

    /// Adds the router's port: an internal port that moves to the router's namespace. The
    /// user-space datapath gets a veth pair instead (the agent's option `ovs_use_veth`). It looks
    /// a port's MTU up by name, does not find a moved port, and would cut frames at 1500 bytes
    /// (`netdev_linux_get_mtu__` in `lib/netdev-linux.c`).
    fn router_port(&mut self, net: Net, mtu: u32) {
        let (device, vlan) = (net.router_device(), net.number());
        // In user space the port is a veth pair: see the module.
        if self.user_space() {
            self.order(&format!("add-port {INT} {} tag={vlan}", router_port(net)));
            return;
        }
        let address = mac(ROUTER, &device);
        self.order(&format!("add-port {INT} {device} tag={vlan}"));
        self.order(&format!(
            "set Interface {device} type=internal mtu_request={mtu} mac=\"{address}\""
        ));
    }

    /// Adds the uplink of a network to the other end of a cable.
    fn uplink(&mut self, leg: &Leg, kind: NetworkType, nic: &str, ends: [Ipv4Addr; 2]) {
        match (leg.net, kind) {
            (Net::Outside, _) => self.provider(EX, leg.net, nic, None),
            (net, NetworkType::Vlan) => self.provider(VLAN, net, nic, Some(net.segment())),
            (_, NetworkType::Vxlan) => self.tunnel(leg, nic, ends),
        }
    }

    fn tunnel(&mut self, leg: &Leg, nic: &str, [local, remote]: [Ipv4Addr; 2]) {
        if self.tun.is_empty() {
            self.bridge(TUN, true);
            self.patch("patch-tun", TUN, "patch-int");
            // PATCH_LV_TO_TUN, VXLAN_TUN_TO_LV, LEARN_FROM_TUN, UCAST_TO_TUN, FLOOD_TO_TUN.
            let learn = "learn(table=20,priority=1,hard_timeout=300,NXM_OF_VLAN_TCI[0..11],\
                         NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:0->NXM_OF_VLAN_TCI[],\
                         load:NXM_NX_TUN_ID[]->NXM_NX_TUN_ID[],output:NXM_OF_IN_PORT[])";
            let unicast = "dl_dst=00:00:00:00:00:00/01:00:00:00:00:00";
            let multicast = "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00";
            self.tun.extend([
                "table=0,priority=1,in_port=patch-int,actions=resubmit(,2)".to_owned(),
                "table=0,priority=0,actions=drop".to_owned(),
                format!("table=2,priority=0,{unicast},actions=resubmit(,20)"),
                format!("table=2,priority=0,{multicast},actions=resubmit(,22)"),
                "table=4,priority=0,actions=drop".to_owned(),
                format!("table=10,priority=1,actions={learn},output:patch-int"),
                "table=20,priority=0,actions=resubmit(,22)".to_owned(),
                "table=22,priority=0,actions=drop".to_owned(),
            ]);
        }
        // The agent names ports by the remote address.
        let port = format!("vxlan-{:08x}", remote.to_bits());
        let (vlan, vni) = (leg.net.number(), leg.net.segment());
        self.order(&format!("add-port {TUN} {port}"));
        self.order(&format!(
            "set Interface {port} type=vxlan options:df_default=true options:egress_pkt_mark=0 \
             options:in_key=flow options:out_key=flow options:local_ip={local} \
             options:remote_ip={remote}"
        ));
        self.tun.extend([
            format!("table=0,priority=1,in_port={port},actions=resubmit(,4)"),
            format!("table=4,priority=1,tun_id={vni},actions=mod_vlan_vid:{vlan},resubmit(,10)"),
            format!(
                "table=22,priority=1,dl_vlan={vlan},actions=strip_vlan,set_tunnel:{vni},\
                 output:{port}"
            ),
        ]);
        if self.user_space() {
            let bridge = underlay_bridge(nic);
            self.bridge(&bridge, false);
            self.order(&format!("add-port {bridge} {nic}"));
            let (peer, peer_nic) =
                if self.host.name() == NODE { (leg.host.name(), NIC) } else { (NODE, leg.nic) };
            let peer_mac = mac(peer, &underlay_bridge(peer_nic));
            self.tunnels.push(Tunnel { nic: nic.to_owned(), local, remote, peer_mac });
        }
    }

    /// Connects a network by a provider bridge, with VLAN `tag` on the wire or untagged.
    fn provider(&mut self, bridge: &'static str, net: Net, nic: &str, tag: Option<u16>) {
        // Names of the agent, such as `int-br-ex` and `phy-br-ex`.
        let (near, far) = (format!("int-{bridge}"), format!("phy-{bridge}"));
        if self.provider.iter().all(|(name, _)| *name != bridge) {
            self.bridge(bridge, true);
            self.patch(&near, bridge, &far);
            self.int.push(format!("table=0,priority=2,in_port={near},actions=drop"));
            let flows = vec![
                "table=0,priority=0,actions=NORMAL".to_owned(),
                format!("table=0,priority=2,in_port={far},actions=drop"),
            ];
            self.provider.push((bridge, flows));
        }
        self.order(&format!("add-port {bridge} {nic}"));
        let vlan = net.number();
        let (wire, out) = match tag {
            Some(tag) => (format!("dl_vlan={tag}"), format!("mod_vlan_vid:{tag}")),
            None => ("vlan_tci=0x0000/0x1fff".to_owned(), "strip_vlan".to_owned()),
        };
        self.int.push(format!(
            "table=0,priority=3,in_port={near},{wire},actions=mod_vlan_vid:{vlan},resubmit(,60)"
        ));
        for (name, flows) in &mut self.provider {
            if *name == bridge {
                flows.push(format!(
                    "table=0,priority=4,in_port={far},dl_vlan={vlan},actions={out},NORMAL"
                ));
            }
        }
    }

    /// Configures the switch and waits until the tunnels are usable.
    fn configure(self, switch: &mut Switch<'_>) -> Result<()> {
        let orders: Vec<Vec<&str>> =
            self.orders.iter().map(|order| order.iter().map(String::as_str).collect()).collect();
        switch.configure(&orders.join(&"--"))?;
        switch.flows(INT, &self.int)?;
        if !self.tun.is_empty() {
            switch.flows(TUN, &self.tun)?;
        }
        for (bridge, flows) in &self.provider {
            switch.flows(bridge, flows)?;
        }
        for Tunnel { nic, local, remote, peer_mac } in &self.tunnels {
            let bridge = underlay_bridge(nic);
            self.host.address(&bridge, *local, 24)?;
            let (remote, peer_mac) = (remote.to_string(), peer_mac.to_string());
            switch.control(&["tnl/neigh/set", &bridge, &remote, &peer_mac])?;
            switch.wait_for(&["ovs/route/show"], &format!("/24 dev {bridge} SRC {local}"))?;
            // Until the port listens, the host's own stack receives encapsulated packets.
            let local = IpAddr::V4(*local);
            switch.wait_for(&["tnl/ports/show", "-v"], &format!("ipv4(dst={local},"))?;
        }
        Ok(())
    }
}

/// Returns the flows of the agent's firewall for the only port of this host, a tenant with
/// `address` on the local VLAN. Its security group allows every IPv4 connection in both
/// directions.
fn firewall(vlan: u8, mac: MacAddr, address: Ipv4Addr) -> Vec<String> {
    let port = TENANT_OFPORT;
    let own = format!("reg5={port}");
    let registers = format!("load:{port}->NXM_NX_REG5[],load:{vlan}->NXM_NX_REG6[]");
    let zone = "zone=NXM_NX_REG6[0..15]";
    let from = format!("in_port={port},dl_src={mac}");
    let deliver = format!("strip_vlan,output:{port}");
    let mut flows = vec![
        // TRANSIENT: packets from the port, and packets to it.
        format!("table=60,priority=100,in_port={port},actions={registers},resubmit(,71)"),
        format!(
            "table=60,priority=90,dl_vlan={vlan},dl_dst={mac},actions={registers},resubmit(,81)"
        ),
        // BASE_EGRESS: only the port's own addresses may send.
        "table=71,priority=110,ct_state=+trk,actions=ct_clear,resubmit(,71)".to_owned(),
        format!("table=71,priority=95,arp,{own},{from},arp_spa={address},actions=resubmit(,94)"),
        format!(
            "table=71,priority=65,ip,{own},{from},nw_src={address},actions=ct(table=72,{zone})"
        ),
        format!("table=71,priority=10,{own},actions=resubmit(,93)"),
        "table=71,priority=0,actions=drop".to_owned(),
        // RULES_EGRESS: the security group's rule.
        format!("table=72,priority=70,ct_state=+est-rel-rpl,ip,{own},actions=resubmit(,73)"),
        format!("table=72,priority=70,ct_state=+new-est,ip,{own},actions=resubmit(,73)"),
        // ACCEPT_OR_INGRESS.
        format!(
            "table=73,priority=100,reg6={vlan},dl_dst={mac},\
             actions=load:{port}->NXM_NX_REG5[],resubmit(,81)"
        ),
        format!(
            "table=73,priority=90,ct_state=+new-est,ip,{own},\
             actions=ct(commit,{zone}),resubmit(,91)"
        ),
        format!("table=73,priority=80,{own},actions=resubmit(,94)"),
        "table=73,priority=0,actions=drop".to_owned(),
        // BASE_INGRESS.
        format!("table=81,priority=100,arp,{own},actions={deliver}"),
        format!("table=81,priority=90,ct_state=-trk,ip,{own},actions=ct(table=82,{zone})"),
        format!("table=81,priority=80,ct_state=+trk,{own},actions=resubmit(,82)"),
        "table=81,priority=0,actions=drop".to_owned(),
        // RULES_INGRESS: the security group's rule.
        format!("table=82,priority=70,ct_state=+est-rel-rpl,ip,{own},actions={deliver}"),
        format!(
            "table=82,priority=70,ct_state=+new-est,ip,{own},\
             actions=ct(commit,{zone}),{deliver},resubmit(,92)"
        ),
        // ACCEPTED_EGRESS_TRAFFIC, ACCEPTED_INGRESS_TRAFFIC, DROPPED_TRAFFIC,
        // ACCEPTED_EGRESS_TRAFFIC_NORMAL.
        "table=91,priority=1,actions=resubmit(,94)".to_owned(),
        "table=92,priority=0,actions=drop".to_owned(),
        "table=93,priority=0,actions=drop".to_owned(),
        "table=94,priority=1,actions=NORMAL".to_owned(),
    ];
    // Replies, and connections that no rule allows any longer.
    for (table, accept) in [(72, "resubmit(,94)"), (82, deliver.as_str())] {
        let kept = format!("ct_zone={vlan},ct_mark=0,{own}");
        flows.extend([
            format!("table={table},priority=50,ct_state=+inv+trk,actions=resubmit(,93)"),
            format!("table={table},priority=50,ct_mark=0x1,{own},actions=resubmit(,93)"),
            format!("table={table},priority=50,ct_state=+est-rel+rpl,{kept},actions={accept}"),
            format!("table={table},priority=50,ct_state=-new-est+rel-inv,{kept},actions={accept}"),
            format!("table={table},priority=40,ct_state=-est,{own},actions=resubmit(,93)"),
            format!(
                "table={table},priority=40,ct_state=+est,ip,{own},\
                 actions=ct(commit,{zone},exec(load:0x1->NXM_NX_CT_MARK[]))"
            ),
            format!("table={table},priority=0,actions=drop"),
        ]);
    }
    flows
}

/// Returns the hops from a leg's end to the router.
pub(crate) fn hops(leg: &Leg, kind: NetworkType, datapath: &Datapath) -> Vec<Hop> {
    let host = leg.host.name();
    let mut hops = Vec::new();
    if let Some(tenant) = &leg.tenant {
        hops.extend([Hop::tx(tenant.name(), TENANT_NIC), Hop::rx(host, TENANT_PORT)]);
    }
    let by_device =
        *datapath == Datapath::Kernel && kind == NetworkType::Vxlan && leg.net != Net::Outside;
    if by_device {
        hops.push(Hop::tx(host, KERNEL_DEVICE));
    }
    hops.extend([Hop::tx(host, NIC), Hop::rx(NODE, leg.nic)]);
    if by_device {
        hops.push(Hop::rx(NODE, KERNEL_DEVICE));
    }
    if matches!(datapath, Datapath::UserSpace { .. }) {
        hops.push(Hop::tx(NODE, &router_port(leg.net)));
    }
    hops.push(Hop::rx(ROUTER, &leg.net.router_device()));
    hops
}
