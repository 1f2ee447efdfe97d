/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Programs at the devices where packets have passed the rules. */
#ifndef OVERLANE_ACCEL_LEAVE_H
#define OVERLANE_ACCEL_LEAVE_H

#include "flow.h"
#include "outer.h"

/* Records a packet that has passed the rules. */
static __always_inline void left(struct __sk_buff *skb, u16 proto, const u8 *ip,
				 const struct state *live, u64 now)
{
	struct flow_key key;

	if (live->verdicts && !flow_of(skb, ETH_HLEN, proto, ip, skb->ifindex, &key))
		see(&key, FLOW_LEFT, live, now);
}

/*
 * Records packets on the slow path that have passed the rules. Attached to the tcx egress of
 * tenants' devices, and of VXLAN devices that are bridge ports. Passes every packet.
 */
SEC("tcx/egress")
int leave(struct __sk_buff *skb)
{
	u64 now;
	struct state *live;
	u32 proto = skb->protocol, protocol;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};

	if ((proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6)) ||
	    load_ip(skb, ETH_HLEN, proto, ip))
		return TCX_NEXT;
	protocol = proto == htons(ETH_P_IP) ? ip[9] : ip[6];
	/* Check this first, so that short connections cost nothing more. */
	if (!is_noted(protocol))
		return TCX_NEXT;
	now = bpf_ktime_get_coarse_ns();
	live = fresh(skb, now);
	if (live)
		left(skb, proto, ip, live, now);
	return TCX_NEXT;
}

/*
 * Partial bypass for packets routed into the tunnel. Attached to the tcx egress of the VXLAN
 * device. The inner packet has passed its rules. The rules accept all outer packets to this VTEP,
 * as it would not be in the FDB otherwise, so the program adds the outer headers and sends the
 * packet to the NIC.
 */
SEC("tcx/egress")
int depart(struct __sk_buff *skb)
{
	u64 now = bpf_ktime_get_coarse_ns();
	u32 proto = skb->protocol, protocol, hash, longest, reason, len = skb->len;
	struct state *live;
	struct front front = {};
	struct fdb *to;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	int tos;

	if ((proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6)) || skb->vlan_present ||
	    load(skb, 0, &front.inner, ETH_HLEN) || front.inner.proto != proto ||
	    load_ip(skb, ETH_HLEN, proto, ip))
		return TCX_NEXT;
	live = fresh(skb, now);
	if (!live)
		return TCX_NEXT;
	protocol = proto == htons(ETH_P_IP) ? ip[9] : ip[6];
	if (is_noted(protocol))
		left(skb, proto, ip, live, now);
	/*
	 * Slow path if no verdicts are given, because there is no plan yet, and for packets
	 * with a mark: outer packets would inherit it, and rules were evaluated without one.
	 */
	if (!live->verdicts || skb->mark)
		return TCX_NEXT;
	/* The VXLAN device is its own domain. */
	to = lookup(netns_of(skb), skb->ifindex, front.inner.dest);
	/* The device may answer neighbour solicitations. */
	if (!to || to->flags & (FDB_LOCAL | FDB_ROUTER_MAC) || to->vxlan != skb->ifindex ||
	    (to->flags & FDB_PROXY && is_icmpv6(proto, ip)))
		return TCX_NEXT;
	tos = inner_tos(proto, ip);
	longest = largest(skb, ETH_HLEN, len - ETH_HLEN, proto, ip);
	if (tos < 0 || !longest || longest > to->mtu || is_beyond(skb, proto, ip, len, to) ||
	    due(&to->refreshed_tx, now, live->refresh))
		return TCX_NEXT;
	__builtin_memcpy(front.ip, ip, CHANGED);
	hash = bpf_get_hash_recalc(skb);
	if (!hash)
		return TCX_NEXT;
	set_tunnel(&front, to, hash, len);
	if (is_sum_beyond(skb, &front, ip, to))
		return TCX_NEXT;
	reason = wrap(skb, &front, to, tos);
	if (reason == ENCAP_UNFIT)
		return TCX_NEXT;
	if (reason != ENCAP_HIT) {
		/* The headers are already changed, so the slow path cannot take it. */
		count(to->slot, ENCAP_LOST, len);
		return TC_ACT_SHOT;
	}
	count(to->slot, ENCAP_HALF, len);
	return bpf_redirect(to->port, 0);
}

#endif
