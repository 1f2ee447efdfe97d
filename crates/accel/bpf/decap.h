/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Decapsulation of packets from the underlay NIC. */
#ifndef OVERLANE_ACCEL_DECAP_H
#define OVERLANE_ACCEL_DECAP_H

#include "packet.h"

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

/* Parses a packet for a VXLAN device of this host. */
static __always_inline u32 parse_received(struct packet *packet, const int six,
					  const struct vtep *vtep)
{
	struct __sk_buff *skb = packet->skb;
	struct front *front = packet->front;
	u32 len = packet->len;
	int tos, ecn;
	u16 proto;

	packet->live = fresh(skb, packet->now);
	if (!packet->live)
		return DECAP_STALE;
	/* A program below the NIC may have marked the packet: rules were evaluated without a mark. */
	if (skb->mark)
		return DECAP_VERDICT;
	if (skb->pkt_type || skb->ifindex != vtep->nic ||
	    (six ? !is_same(front->six.ip.daddr, vtep->local) :
		   front->four.ip.daddr != vtep->local[0]))
		return DECAP_NOT_OURS;
	/* In IPv6, a fragment has another header in front of UDP. */
	if (!six && front->four.ip.frag_off & htons(0x3fff))
		return DECAP_FRAGMENT;
	/* The slow path drops wrong lengths, flags and checksums, or trims the packet. */
	if ((len - ETH_HLEN > 0xffff && !(vtep->flags & VTEP_BIG && skb->gso_size)) ||
	    front->vxlan.flags != htonl(VXLAN_FLAGS) ||
	    !(six ? is_whole6(front, len) : is_whole4(front, len)))
		return DECAP_MALFORMED;
	if (*(u8 *)&front->inner.dest & 1)
		return DECAP_GROUP;
	proto = packet->proto = front->inner.proto;
	if (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6))
		return DECAP_PROTOCOL;
	if (load_ip(skb, packet->start, proto, packet->ip))
		return DECAP_MALFORMED;
	tos = inner_tos(proto, packet->ip);
	/* Length fields are zero in TCP packets only (include/linux/ip.h, iph_totlen). */
	if (tos < 0 || (len - ETH_HLEN > 0xffff && !is_tcp(proto, packet->ip)))
		return DECAP_MALFORMED;
	/*
	 * The ECN field must be copied inside, or the packet dropped or logged: RFC 6040,
	 * include/net/inet_ecn.h.
	 */
	ecn = (six ? class6(front) : front->four.ip.tos) & ECN_MASK;
	tos &= ECN_MASK;
	if (ecn == ECN_CE || (ecn && !tos) || (ecn == ECN_ECT_1 && tos == ECN_ECT_0))
		return DECAP_ECN;
	return 0;
}

/* Looks up the sender, whose entry is stored in `sender`, and the destination. */
static __always_inline u32 find_ends_received(struct packet *packet, const int six, u32 vxlan,
					      struct fdb **sender)
{
	const struct front *front = packet->front;
	struct fdb *from;
	u32 reason;

	/* The address may have moved: the VXLAN device must learn that. */
	from = *sender = lookup(packet->netns, packet->domain, front->inner.source);
	if (!from || from->flags & FDB_LOCAL || from->vxlan != vxlan ||
	    from->port != packet->skb->ifindex ||
	    (six ? !is_same(front->six.ip.saddr, from->remote) :
		   front->four.ip.saddr != from->remote[0]))
		return DECAP_SOURCE;
	/* Route only if the VXLAN device is its own domain, not a bridge port. */
	reason = find_destination(packet, 1, packet->domain == from->vxlan);
	if (reason)
		return reason;
	packet->longest = packet->len - packet->start;
	if (!packet->routed)
		return 0;
	packet->longest =
		largest(packet->skb, packet->start, packet->longest, packet->proto, packet->ip);
	return packet->longest ? 0 : DECAP_ROUTE;
}

/*
 * Whether the VXLAN device should merge the segment with others (GRO), because the NIC does not. A
 * tenant's stack takes a merged packet for little more than the price of one segment, which is more
 * than the fast path saves. This is decided first, because further work for each segment would cost
 * what merging gains. The slow path is longer: smaller segments follow on it, so that they do not
 * overtake. Flows whose outer source ports are congruent share an entry, which costs nothing but a
 * slow packet. `at` is the offset of the inner IP header.
 */
static __always_inline int is_merged(struct __sk_buff *skb, const struct front *front, u32 at,
				     u64 now)
{
	u32 flow = front->udp.source & (MERGE_FLOWS - 1);
	u8 protocol;
	u64 *last;

	if (skb->gso_size)
		return 0;
	if (load(skb, at + (front->inner.proto == htons(ETH_P_IP) ? 9 : 6), &protocol, 1) ||
	    protocol != IPPROTO_TCP)
		return 0;
	last = bpf_map_lookup_elem(&merged_flows, &flow);
	if (!last)
		return 0;
	if (skb->len - at >= MERGE_BYTES) {
		*last = now;
		return 1;
	}
	return now - *last < MERGE_MS * 1000000ULL;
}

/*
 * Partial bypass: rules must see the packet. It is counted by `reason` if it takes the slow path.
 * The rules accept all outer packets from this VTEP, as it would not be in the FDB otherwise, so
 * only the inner packet has to pass rules. It enters at the VXLAN device as if that had
 * decapsulated it (drivers/net/vxlan, vxlan_rcv).
 */
static __always_inline u32 receive_half(struct packet *packet, const int six, u32 reason,
					const struct vtep *vtep, struct fdb *from)
{
	struct __sk_buff *skb = packet->skb;
	struct front *front = packet->front;

	/*
	 * Slow path if no verdicts are given, because there is no plan yet. Slow path for
	 * GSO packets, because not every kernel can clear the tunnel flag in gso_type. Slow path for packets
	 * with a mark, because rules were evaluated without one, and with a priority, because
	 * redirection clears it and rules may read it (____dev_forward_skb,
	 * include/linux/netdevice.h). Slow path for sandboxes, because their VXLAN device is out of
	 * reach.
	 */
	if (!packet->live->verdicts || skb->gso_size || skb->mark || skb->priority ||
	    vtep->crossing || vtep->netns || !is_outer_sum_right(skb, six, vtep, front))
		return reason;
	if (due(&from->refreshed_rx, packet->now, packet->live->refresh))
		return DECAP_REFRESH;
	if (unwrap(skb, six, front->inner.proto))
		return DECAP_UNFIT;
	/* Restore the Ethernet header: the outer packet's header is still in its place. */
	if (bpf_skb_store_bytes(skb, 0, &front->inner, ETH_HLEN, 0)) {
		/* The headers are already changed, so the slow path cannot take it. */
		return DECAP_LOST;
	}
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	return DECAP_HALF;
}

/* A packet without a verdict may bypass the rules for its outer headers only. */
static __always_inline u32 admit_received(struct packet *packet, const int six, u32 vxlan,
					  const struct vtep *vtep, struct fdb *from)
{
	u32 reason = admit(packet, 1, vxlan);

	return reason ? receive_half(packet, six, reason, vtep, from) : 0;
}

/* Checks that the fast path may hand the packet to its destination now. */
static __always_inline u32 check_received(struct packet *packet, const int six,
					  const struct vtep *vtep, struct fdb *from)
{
	struct __sk_buff *skb = packet->skb;
	struct flow *flow = packet->flow;
	struct fdb *to = packet->to;

	/* Through another device, other rules may apply. */
	if (to && flow && to->port != flow->output)
		return DECAP_VERDICT;
	if (!to || !(to->flags & FDB_LOCAL))
		return DECAP_DESTINATION;
	if (!is_outer_sum_right(skb, six, vtep, packet->front))
		return DECAP_CHECKSUM;
	if (skb->gso_size && unwraps_gso()) {
		if (!packet->routed)
			packet->longest = largest(skb, packet->start, packet->longest,
						  packet->proto, packet->ip);
		if (!packet->longest || packet->longest > to->mtu)
			return DECAP_MTU;
	} else if (skb->gso_size) {
		if (!(to->flags & FDB_PEER) ||
		    !is_taken(skb, to, packet->proto, packet->ip, packet->start, flow))
			return DECAP_GSO;
	} else if (packet->longest > to->mtu) {
		return DECAP_MTU;
	}
	/* Only packets routed to the tenant confirm its neighbour entry. */
	if (due(&from->refreshed_rx, packet->now, packet->live->refresh) |
	    (packet->routed && due(&to->refreshed_rx, packet->now, packet->live->refresh)) |
	    flow_due(flow, packet->now, packet->live))
		return DECAP_REFRESH;
	return 0;
}

/* Removes the outer headers and translates the packet. */
static __always_inline u32 rewrite_received(struct packet *packet, const int six)
{
	struct __sk_buff *skb = packet->skb;
	struct front *front = packet->front;
	struct flow *flow = packet->flow;

	if (unwrap(skb, six, packet->proto))
		return DECAP_UNFIT;
	__builtin_memcpy(front->ip, packet->ip, CHANGED);
	/* The headers are already changed, so the slow path cannot take it. */
	if (bpf_skb_store_bytes(skb, 0, &front->inner, ETH_HLEN + CHANGED, 0))
		return DECAP_LOST;
	/* The outer checksum is verified and removed (udp4_csum_init, udp6_csum_init). */
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	if (flow && flow->flags & FLOW_TRANSLATED &&
	    translate(skb, ETH_HLEN, packet->ip, packet->key, flow))
		return DECAP_LOST;
	return 0;
}

/* Sends a decapsulated packet to its destination. */
static __always_inline int deliver(struct __sk_buff *skb, const struct vtep *vtep,
				   const struct fdb *to, u32 len)
{
	/* Packets that cross namespaces lose both (__dev_forward_skb). */
	skb->mark = 0;
	skb->priority = 0;
	count(vtep->slot, DECAP_HIT, len);
	count(to->slot, DECAP_HIT, len);
	if (vtep->crossing) {
		skb->mark = to->port | (to->flags & FDB_PEER ? MARK_PEER : 0);
		return bpf_redirect_peer(vtep->crossing, 0);
	}
	if (to->flags & FDB_PEER)
		return bpf_redirect_peer(to->port, 0);
	return bpf_redirect(to->port, 0);
}

/*
 * Handles a packet from the NIC. `six` is a constant, so each family has its own code without the
 * other's cost.
 */
static __always_inline int receive(struct __sk_buff *skb, const int six)
{
	const u32 overhead = six ? OVERHEAD6 : OVERHEAD4;
	struct front front;
	struct flow_key key;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	struct packet packet = {
		.skb = skb,
		.front = &front,
		.ip = ip,
		.key = &key,
		.now = bpf_ktime_get_coarse_ns(),
		.len = skb->len,
		.start = ETH_HLEN + overhead,
	};
	struct vtep_key tunnel = { .ipv6 = six };
	struct vtep *vtep;
	struct fdb *from;
	u32 reason, vxlan;

	/* Packets that are not VXLAN for this host are not counted. */
	if (six ? read6(skb, &front) : read4(skb, &front))
		return TCX_NEXT;
	tunnel.vni = front.vxlan.vni;
	tunnel.port = front.udp.dest;
	vtep = bpf_map_lookup_elem(&vteps, &tunnel);
	if (!vtep)
		return TCX_NEXT;
	if (vtep->flags & VTEP_MERGES && is_merged(skb, &front, packet.start, packet.now))
		return pass_or_drop(vtep->slot, DECAP_MERGE, packet.len, 1);
	vxlan = vtep->vxlan;
	packet.netns = vtep->netns;
	packet.domain = vtep->domain;
	packet.flags = &vtep->flags;
	reason = parse_received(&packet, six, vtep) ?:
		 find_ends_received(&packet, six, vxlan, &from) ?:
		 admit_received(&packet, six, vxlan, vtep, from) ?: find_next_hop(&packet, 1) ?:
		 check_received(&packet, six, vtep, from) ?: rewrite_received(&packet, six);
	if (!reason)
		return deliver(skb, vtep, packet.to, packet.len - overhead);
	if (reason == DECAP_HALF) {
		count(vtep->slot, DECAP_HALF, packet.len - overhead);
		return bpf_redirect(vxlan, BPF_F_INGRESS);
	}
	return pass_or_drop(vtep->slot, reason, packet.len, 1);
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
