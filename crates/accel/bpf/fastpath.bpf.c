// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The fast path beside a bridge or routes and their VXLAN devices.
 *
 * `encap` runs at the tcx ingress of a tenant's device and adds the outer headers. `decap`
 * (decap.h) runs at the tcx ingress of the underlay NIC and removes them. `depart` (leave.h)
 * encapsulates packets after rules have seen them. The programs learn nothing: the maps define what
 * to forward and how, and src/programs/maps.rs keeps them in step with the kernel. If anything
 * about a packet is unexpected, it passes unchanged to the bridge, routes and the VXLAN device, and
 * is counted by reason.
 *
 * If bridge and VXLAN device are in a sandbox namespace and the NIC is not (Docker's overlay
 * networks), a veth pair connects the two. `encap` and `decap` decide and change the packet.
 * `outward` and `inward`, each at the receiving end of the pair, only redirect it.
 */
#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "frame.h"
#include "outer.h"
#include "route.h"
#include "flow.h"
#include "decap.h"
#include "leave.h"
#include "guard.h"
#include "hooks.h"

SEC("tcx/ingress")
int encap(struct __sk_buff *skb)
{
	u64 now = bpf_ktime_get_coarse_ns();
	u32 ifindex = skb->ifindex, len = skb->len, netns = netns_of(skb), hash, longest, reason;
	struct front front = {};
	struct bpf_fib_lookup *fib;
	struct mac_key key = { .device = ifindex, .netns = netns };
	struct state *live;
	struct source *from;
	struct fdb *to;
	struct flow *flow = 0;
	struct flow_key key_of_flow;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	int tos, verdict, routed = 0, translated = 0;
	u16 proto;

	live = fresh(skb, now);
	if (!live)
		return pass_port(skb, ENCAP_STALE);
	if (skb->vlan_present)
		return pass_port(skb, ENCAP_VLAN);
	if (load(skb, 0, &front.inner, ETH_HLEN))
		return pass_port(skb, ENCAP_MALFORMED);
	/* Group bit: the first bit on the wire. The slow path replicates frames. */
	if (*(u8 *)&front.inner.dest & 1)
		return pass_port(skb, ENCAP_GROUP);
	proto = front.inner.proto;
	if (skb->protocol != proto ||
	    (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6)))
		return pass_port(skb, ENCAP_PROTOCOL);
	if (load_ip(skb, ETH_HLEN, proto, ip))
		return pass_port(skb, ENCAP_MALFORMED);
	tos = inner_tos(proto, ip);
	if (tos < 0)
		return pass_port(skb, ENCAP_MALFORMED);
	/* The address may have moved: the bridge must learn that. */
	__builtin_memcpy(key.mac, front.inner.source, 6);
	from = bpf_map_lookup_elem(&sources, &key);
	if (!from) {
		struct device device = { .netns = netns, .ifindex = ifindex };
		struct port *port = bpf_map_lookup_elem(&ports, &device);

		return pass(skb, port ? port->slot : 0, port ? ENCAP_SOURCE : ENCAP_PORT);
	}
	/*
	 * A tenant in this namespace may have marked the packet. Outer packets inherit marks, and
	 * rules were evaluated without one.
	 */
	if (skb->mark)
		return pass(skb, from->slot, ENCAP_VERDICT);
	longest = largest(skb, ETH_HLEN, len - ETH_HLEN, proto, ip);
	if (!longest)
		return pass(skb, from->slot, ENCAP_MTU);
	if (from->flags & DOMAIN_CHECKED && !is_sound(proto, ip, len - ETH_HLEN))
		return pass(skb, from->slot, ENCAP_MALFORMED);
	to = lookup(netns, from->domain, front.inner.dest);
	if (to && to->flags & FDB_ROUTER_MAC) {
		if (!is_plain(proto, ip, len - ETH_HLEN) || !(to->flags & router_flag(proto)))
			return pass(skb, from->slot, ENCAP_MALFORMED);
		if (hops(proto, ip) <= 1)
			return pass(skb, from->slot, ENCAP_TTL);
		routed = 1;
	}
	if (to && !(to->flags & FDB_LOCAL) && comes_to_rules(from->flags, proto, routed)) {
		int starts = flow_of(skb, ETH_HLEN, proto, ip, ifindex, &key_of_flow);
		u32 at = ETH_HLEN + header_length(&key_of_flow);

		if (starts == FLOW_STARTS)
			reopen(skb, &key_of_flow);
		if (starts || !is_verified(skb, at, key_of_flow.protocol, 0))
			return pass(skb, from->slot, ENCAP_TRACKING);
		flow = verdict_of(skb, &key_of_flow, live);
		if (!flow) {
			entered(&key_of_flow, live, now, 1);
			return pass(skb, from->slot, ENCAP_VERDICT);
		}
		/* The connection may have changed state, and needs a new verdict. */
		if (!bypasses(skb, at, &key_of_flow, flow)) {
			entered(&key_of_flow, live, now, 1);
			return pass(skb, from->slot, ENCAP_TRACKING);
		}
		set_dest(ip, flow, key_of_flow.ipv6);
	}
	if ((routed || from->flags & DOMAIN_CHECKED) && may_be_fragment(proto, ip))
		return pass(skb, from->slot, ENCAP_TRACKING);
	if (routed) {
		fib = found_route();
		if (!fib || route(skb, from->domain, proto, ip, longest, fib, flow))
			return pass(skb, from->slot, ENCAP_ROUTE);
		to = lookup(netns, fib->ifindex, fib->dmac);
		/* Routing to a bridge with a VXLAN device is untested. */
		if (to && to->vxlan != fib->ifindex)
			return pass(skb, from->slot, ENCAP_ROUTE);
		__builtin_memcpy(&front.inner.dest, fib->dmac, 6);
		__builtin_memcpy(&front.inner.source, fib->smac, 6);
		age(proto, ip);
	}
	/* Through another device, other rules may apply. */
	if (to && flow && to->vxlan != flow->output)
		return pass(skb, from->slot, ENCAP_VERDICT);
	if (!to || to->flags & (FDB_LOCAL | FDB_ROUTER_MAC))
		return pass(skb, from->slot, ENCAP_DESTINATION);
	/*
	 * The device or bridge may answer, even unicast solicitations (drivers/net/vxlan,
	 * vxlan_xmit; net/bridge, br_do_suppress_nd).
	 */
	if (to->flags & FDB_PROXY && is_icmpv6(proto, ip))
		return pass(skb, from->slot, ENCAP_PROTOCOL);
	if (longest > to->mtu || is_beyond(skb, proto, ip, len, to))
		return pass(skb, from->slot, ENCAP_MTU);
	if (due(&from->refreshed, now, live->refresh) |
	    due(&to->refreshed_tx, now, live->refresh) |
	    flow_due(flow, now, live))
		return pass(skb, from->slot, ENCAP_REFRESH);
	if (flow && flow->flags & FLOW_TRANSLATED) {
		/* The packet is changed from here on, so the slow path cannot take it. */
		if (translate(skb, ETH_HLEN, ip, &key_of_flow, flow)) {
			count(from->slot, ENCAP_LOST, len);
			return TC_ACT_SHOT;
		}
		translated = 1;
	}
	__builtin_memcpy(front.ip, ip, CHANGED);
	/* Without a flow hash, drivers/net/vxlan hashes the Ethernet header. */
	hash = bpf_get_hash_recalc(skb);
	if (!hash && !translated)
		return pass(skb, from->slot, ENCAP_HASH);
	set_tunnel(&front, to, hash, len);
	if (is_sum_beyond(skb, &front, ip, to)) {
		/*
		 * The VXLAN device computes the checksum, and its FDB has the same entry. Only the
		 * bridge is bypassed.
		 */
		if (routed && bpf_skb_store_bytes(skb, 0, &front.inner, ETH_HLEN + CHANGED, 0)) {
			count(from->slot, ENCAP_LOST, len);
			return TC_ACT_SHOT;
		}
		count(from->slot, ENCAP_SHORTCUT, len);
		count(to->slot, ENCAP_SHORTCUT, len);
		return bpf_redirect(to->vxlan, 0);
	}
	reason = wrap(skb, &front, to, tos);
	if (reason == ENCAP_UNFIT && !translated)
		return pass(skb, from->slot, ENCAP_UNFIT);
	/* The packet is partly changed, so the slow path cannot take it. */
	if (reason != ENCAP_HIT) {
		count(from->slot, ENCAP_LOST, len);
		return TC_ACT_SHOT;
	}
	if (from->crossing) {
		skb->mark = to->port;
		verdict = bpf_redirect_peer(from->crossing, 0);
	} else {
		verdict = bpf_redirect(to->port, 0);
	}
	count(from->slot, ENCAP_HIT, len);
	count(to->slot, ENCAP_HIT, len);
	return verdict;
}

/*
 * From a sandbox to the NIC: redirects packets sent by `encap`. Other packets do not belong on this
 * device.
 */
SEC("tcx/ingress")
int outward(struct __sk_buff *skb)
{
	u32 nic = skb->mark;

	if (!nic)
		return TC_ACT_SHOT;
	skb->mark = 0;
	return bpf_redirect(nic, 0);
}

/* Into a sandbox to the tenant: redirects packets sent by `decap`. */
SEC("tcx/ingress")
int inward(struct __sk_buff *skb)
{
	u32 port = skb->mark;

	if (!port)
		return TC_ACT_SHOT;
	skb->mark = 0;
	if (port & MARK_PEER)
		return bpf_redirect_peer(port & ~MARK_PEER, 0);
	return bpf_redirect(port, 0);
}
