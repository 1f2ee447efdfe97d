/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Decapsulation of packets from the underlay NIC. */
#ifndef OVERLANE_ACCEL_DECAP_H
#define OVERLANE_ACCEL_DECAP_H

#include "flow.h"
#include "outer.h"
#include "route.h"

/*
 * Whether a connection of the tenant itself receives the GSO packet. On a kernel where BPF cannot
 * clear the tunnel flag in gso_type (`unwraps_gso`), the flag would mislead a device that the tenant
 * forwards the packet to.
 */
static __always_inline int is_taken(struct __sk_buff *skb, const struct fdb *to, u16 proto,
				    const u8 *ip, u32 at, const struct flow *flow)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sock;
	u32 size, listening;

	if (proto == htons(ETH_P_IP)) {
		if (ip[9] != IPPROTO_TCP || ip[0] != 0x45)
			return 0;
		__builtin_memcpy(&tuple.ipv4, ip + 12, 8);
		if (bpf_skb_load_bytes(skb, at + IP_HLEN, &tuple.ipv4.sport, 4))
			return 0;
		size = sizeof(tuple.ipv4);
	} else {
		if (ip[6] != IPPROTO_TCP)
			return 0;
		__builtin_memcpy(&tuple.ipv6, ip + 8, 32);
		if (bpf_skb_load_bytes(skb, at + IPV6_HLEN, &tuple.ipv6.sport, 4))
			return 0;
		size = sizeof(tuple.ipv6);
	}
	/* Look up with the addresses that the tenant will see. */
	if (flow && proto == htons(ETH_P_IP)) {
		tuple.ipv4.saddr = flow->source[0];
		tuple.ipv4.daddr = flow->dest[0];
		__builtin_memcpy(&tuple.ipv4.sport, &flow->source_port, 4);
	} else if (flow) {
		__builtin_memcpy(tuple.ipv6.saddr, flow->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, flow->dest, 16);
		__builtin_memcpy(&tuple.ipv6.sport, &flow->source_port, 4);
	}
	sock = bpf_skc_lookup_tcp(skb, &tuple, size, to->netns, 0);
	if (!sock)
		return 0;
	/* A listening socket may match an address that is not the tenant's. */
	listening = sock->state == BPF_TCP_LISTEN || sock->state == BPF_TCP_NEW_SYN_RECV;
	bpf_sk_release(sock);
	return !listening;
}

/*
 * Whether the outer checksum needs no verification: verified already, or absent. Over IPv6 it may
 * be absent only if the VXLAN device accepts that. Otherwise the slow path verifies it.
 */
static __always_inline int is_outer_sum_right(struct __sk_buff *skb, const int six,
					      const struct vtep *vtep, const struct front *front)
{
	u32 summed = ip_summed(bpf_cast_to_kern_ctx(skb));

	return summed != CHECKSUM_COMPLETE && !(summed == CHECKSUM_NONE && front->udp.check) &&
	       !(six && !front->udp.check && !(vtep->flags & VTEP_ZERO_CHECKSUM));
}

/*
 * Partial bypass: rules must see the packet. It is counted by `reason` if it takes the slow path.
 * The rules accept all outer packets from this VTEP, as it would not be in the FDB otherwise, so
 * only the inner packet has to pass rules. It enters at the VXLAN device as if that had
 * decapsulated it (drivers/net/vxlan, vxlan_rcv).
 */
static __always_inline int receive_half(struct __sk_buff *skb, const int six, u32 reason,
					struct vtep *vtep, struct fdb *from,
					const struct state *live, u64 now, struct front *front)
{
	u32 len = skb->len;

	/*
	 * Slow path if no verdicts are given, because rules must count each packet. Slow path for
	 * GSO packets, because not every kernel can clear the tunnel flag in gso_type. Slow path for packets
	 * with a mark, because rules were evaluated without one, and with a priority, because
	 * redirection clears it and rules may read it (____dev_forward_skb,
	 * include/linux/netdevice.h). Slow path for sandboxes, because their VXLAN device is out of
	 * reach.
	 */
	if (!live->verdicts || skb->gso_size || skb->mark || skb->priority || vtep->crossing ||
	    vtep->netns || !is_outer_sum_right(skb, six, vtep, front))
		return pass(skb, vtep->slot, reason);
	if (due(&from->refreshed_rx, now, live->refresh))
		return pass(skb, vtep->slot, DECAP_REFRESH);
	if (unwrap(skb, six, front->inner.proto))
		return pass(skb, vtep->slot, DECAP_UNFIT);
	/* Restore the Ethernet header: the outer packet's header is still in its place. */
	if (bpf_skb_store_bytes(skb, 0, &front->inner, ETH_HLEN, 0)) {
		/* The headers are already changed, so the slow path cannot take it. */
		count(vtep->slot, DECAP_LOST, len);
		return TC_ACT_SHOT;
	}
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	count(vtep->slot, DECAP_HALF, len - (six ? OVERHEAD6 : OVERHEAD4));
	return bpf_redirect(vtep->vxlan, BPF_F_INGRESS);
}

/*
 * Handles a packet from the NIC. `six` is a constant, so each family has its own code without the
 * other's cost.
 */
static __always_inline int receive(struct __sk_buff *skb, const int six)
{
	const u32 overhead = six ? OVERHEAD6 : OVERHEAD4;
	u64 now = bpf_ktime_get_coarse_ns();
	u32 len = skb->len, longest;
	struct front front;
	struct bpf_fib_lookup *fib;
	struct vtep_key key = { .ipv6 = six };
	struct vtep *vtep;
	struct state *live;
	struct fdb *from, *to;
	struct flow *flow = 0;
	struct flow_key key_of_flow;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	int tos, ecn, routed = 0;
	u16 proto;

	/* Packets that are not VXLAN for this host are not counted. */
	if (six ? read6(skb, &front) : read4(skb, &front))
		return TCX_NEXT;
	key.vni = front.vxlan.vni;
	key.port = front.udp.dest;
	vtep = bpf_map_lookup_elem(&vteps, &key);
	if (!vtep)
		return TCX_NEXT;
	live = fresh(skb, now);
	if (!live)
		return pass(skb, vtep->slot, DECAP_STALE);
	/* A program below the NIC may have marked the packet: rules were evaluated without a mark. */
	if (skb->mark)
		return pass(skb, vtep->slot, DECAP_VERDICT);
	if (skb->pkt_type || skb->ifindex != vtep->nic ||
	    (six ? !is_same(front.six.ip.daddr, vtep->local) :
		   front.four.ip.daddr != vtep->local[0]))
		return pass(skb, vtep->slot, DECAP_NOT_OURS);
	/* In IPv6, a fragment has another header in front of UDP. */
	if (!six && front.four.ip.frag_off & htons(0x3fff))
		return pass(skb, vtep->slot, DECAP_FRAGMENT);
	/* The slow path drops wrong lengths, flags and checksums, or trims the packet. */
	if ((len - ETH_HLEN > 0xffff && !(vtep->flags & VTEP_BIG && skb->gso_size)) ||
	    front.vxlan.flags != htonl(VXLAN_FLAGS) ||
	    !(six ? is_whole6(&front, len) : is_whole4(&front, len)))
		return pass(skb, vtep->slot, DECAP_MALFORMED);
	if (*(u8 *)&front.inner.dest & 1)
		return pass(skb, vtep->slot, DECAP_GROUP);
	proto = front.inner.proto;
	if (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6))
		return pass(skb, vtep->slot, DECAP_PROTOCOL);
	if (load_ip(skb, ETH_HLEN + overhead, proto, ip))
		return pass(skb, vtep->slot, DECAP_MALFORMED);
	tos = inner_tos(proto, ip);
	/* Length fields are zero in TCP packets only (include/linux/ip.h, iph_totlen). */
	if (tos < 0 || (len - ETH_HLEN > 0xffff && !is_tcp(proto, ip)))
		return pass(skb, vtep->slot, DECAP_MALFORMED);
	/*
	 * The ECN field must be copied inside, or the packet dropped or logged: RFC 6040,
	 * include/net/inet_ecn.h.
	 */
	ecn = (six ? class6(&front) : front.four.ip.tos) & ECN_MASK;
	tos &= ECN_MASK;
	if (ecn == ECN_CE || (ecn && !tos) || (ecn == ECN_ECT_1 && tos == ECN_ECT_0))
		return pass(skb, vtep->slot, DECAP_ECN);
	/* The address may have moved: the VXLAN device must learn that. */
	from = lookup(vtep->netns, vtep->domain, front.inner.source);
	if (!from || from->flags & FDB_LOCAL || from->vxlan != vtep->vxlan ||
	    from->port != skb->ifindex ||
	    (six ? !is_same(front.six.ip.saddr, from->remote) :
		   front.four.ip.saddr != from->remote[0]))
		return pass(skb, vtep->slot, DECAP_SOURCE);
	longest = len - overhead - ETH_HLEN;
	if (vtep->flags & DOMAIN_CHECKED && !is_sound(proto, ip, longest))
		return pass(skb, vtep->slot, DECAP_MALFORMED);
	to = lookup(vtep->netns, vtep->domain, front.inner.dest);
	/* Route only if the VXLAN device is its own domain, not a bridge port. */
	if (to && to->flags & FDB_ROUTER_MAC && vtep->domain == from->vxlan) {
		if (!is_plain(proto, ip, longest) || !(to->flags & router_flag(proto)))
			return pass(skb, vtep->slot, DECAP_MALFORMED);
		if (hops(proto, ip) <= 1)
			return pass(skb, vtep->slot, DECAP_TTL);
		longest = largest(skb, ETH_HLEN + overhead, longest, proto, ip);
		if (!longest)
			return pass(skb, vtep->slot, DECAP_ROUTE);
		routed = 1;
	}
	if (to && (routed || to->flags & FDB_LOCAL) && comes_to_rules(vtep->flags, proto, routed)) {
		int starts = flow_of(skb, ETH_HLEN + overhead, proto, ip, vtep->vxlan, &key_of_flow);
		u32 at = ETH_HLEN + overhead + header_length(&key_of_flow);

		if (starts == FLOW_STARTS)
			reopen(skb, &key_of_flow);
		if (starts || !is_verified(skb, at, key_of_flow.protocol, 1))
			return receive_half(skb, six, DECAP_TRACKING, vtep, from, live, now, &front);
		flow = verdict_of(skb, &key_of_flow, live);
		if (!flow) {
			entered(&key_of_flow, live, now, asks_at_tunnel(&key_of_flow));
			return receive_half(skb, six, DECAP_VERDICT, vtep, from, live, now, &front);
		}
		if (!bypasses(skb, at, &key_of_flow, flow)) {
			entered(&key_of_flow, live, now, asks_at_tunnel(&key_of_flow));
			return receive_half(skb, six, DECAP_TRACKING, vtep, from, live, now, &front);
		}
		set_dest(ip, flow, key_of_flow.ipv6);
	}
	if ((routed || vtep->flags & DOMAIN_CHECKED) && may_be_fragment(proto, ip))
		return pass(skb, vtep->slot, DECAP_TRACKING);
	if (routed) {
		fib = found_route();
		if (!fib || route(skb, vtep->domain, proto, ip, longest, fib, flow))
			return pass(skb, vtep->slot, DECAP_ROUTE);
		to = lookup(vtep->netns, fib->ifindex, fib->dmac);
		__builtin_memcpy(&front.inner.dest, fib->dmac, 6);
		__builtin_memcpy(&front.inner.source, fib->smac, 6);
		age(proto, ip);
	}
	/* Through another device, other rules may apply. */
	if (to && flow && to->port != flow->output)
		return pass(skb, vtep->slot, DECAP_VERDICT);
	if (!to || !(to->flags & FDB_LOCAL))
		return pass(skb, vtep->slot, DECAP_DESTINATION);
	if (!is_outer_sum_right(skb, six, vtep, &front))
		return pass(skb, vtep->slot, DECAP_CHECKSUM);
	if (skb->gso_size && unwraps_gso()) {
		if (!routed)
			longest = largest(skb, ETH_HLEN + overhead, longest, proto, ip);
		if (!longest || longest > to->mtu)
			return pass(skb, vtep->slot, DECAP_MTU);
	} else if (skb->gso_size) {
		if (!(to->flags & FDB_PEER) || !is_taken(skb, to, proto, ip, ETH_HLEN + overhead, flow))
			return pass(skb, vtep->slot, DECAP_GSO);
	} else if (longest > to->mtu) {
		return pass(skb, vtep->slot, DECAP_MTU);
	}
	/* Only packets routed to the tenant confirm its neighbour entry. */
	if (due(&from->refreshed_rx, now, live->refresh) |
	    (routed && due(&to->refreshed_rx, now, live->refresh)) |
	    flow_due(flow, now, live))
		return pass(skb, vtep->slot, DECAP_REFRESH);

	if (unwrap(skb, six, proto))
		return pass(skb, vtep->slot, DECAP_UNFIT);
	__builtin_memcpy(front.ip, ip, CHANGED);
	/* The headers are already changed, so the slow path cannot take it. */
	if (bpf_skb_store_bytes(skb, 0, &front.inner, ETH_HLEN + CHANGED, 0)) {
		count(vtep->slot, DECAP_LOST, len);
		return TC_ACT_SHOT;
	}
	/* The outer checksum is verified and removed (udp4_csum_init, udp6_csum_init). */
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	if (flow && flow->flags & FLOW_TRANSLATED &&
	    translate(skb, ETH_HLEN, ip, &key_of_flow, flow)) {
		count(vtep->slot, DECAP_LOST, len);
		return TC_ACT_SHOT;
	}
	/* Packets that cross namespaces lose both (__dev_forward_skb). */
	skb->mark = 0;
	skb->priority = 0;
	count(vtep->slot, DECAP_HIT, len - overhead);
	count(to->slot, DECAP_HIT, len - overhead);
	if (vtep->crossing) {
		skb->mark = to->port | (to->flags & FDB_PEER ? MARK_PEER : 0);
		return bpf_redirect_peer(vtep->crossing, 0);
	}
	if (to->flags & FDB_PEER)
		return bpf_redirect_peer(to->port, 0);
	return bpf_redirect(to->port, 0);
}

SEC("tcx/ingress")
int decap(struct __sk_buff *skb)
{
	u32 proto = skb->protocol;

	if (skb->vlan_present)
		return TCX_NEXT;
	if (proto == htons(ETH_P_IP))
		return receive(skb, 0);
	if (proto == htons(ETH_P_IPV6))
		return receive(skb, 1);
	return TCX_NEXT;
}

#endif
