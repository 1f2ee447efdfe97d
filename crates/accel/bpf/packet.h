/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The stages that `encap` and `decap` share. Both parse the packet, look up its ends, admit it past
 * the rules, route it, check its destination, and rewrite it. A stage returns 0, or the reason why
 * the packet leaves the fast path. Packets that do so have one exit, `pass_or_drop`.
 */
#ifndef OVERLANE_ACCEL_PACKET_H
#define OVERLANE_ACCEL_PACKET_H

#include "flow.h"
#include "outer.h"
#include "route.h"

/*
 * Facts that a stage passes to the next. Functions that are not inlined get `ip` and `key`, so
 * these are variables of their own, and clang can keep the members in registers. Flags are read
 * where they are needed: a copy would cost the verifier more instructions.
 */
struct packet {
	struct __sk_buff *skb;
	struct state *live;
	struct front *front;
	u8 *ip;			/* the inner IP header, with room for IPv6 */
	struct flow_key *key;	/* filled in if the packet comes to rules */
	struct flow *flow;	/* its verdict; NULL: it does not come to rules */
	struct fdb *to;		/* the destination */
	const u32 *flags;	/* DOMAIN_* */
	u64 now;
	u32 len;		/* as received */
	u32 start;		/* offset of the inner IP header */
	u32 netns;
	u32 domain;		/* ifindex of the forwarding domain */
	u32 longest;		/* layer 3 length, of a GSO packet that of its largest segment */
	int tos;		/* DSCP and ECN of the inner header */
	int routed;
	u16 proto;		/* inner EtherType */
};

/* A reason of the packet's direction. `is_tunnel` is a constant: the packet came from a tunnel. */
#define REASON(is_tunnel, name) ((is_tunnel) ? DECAP_##name : ENCAP_##name)

/*
 * Counts a packet that the fast path does not forward. Passes it on unchanged, to the next program
 * and the slow path, or drops it if it is partly changed, so that the slow path cannot take it.
 */
static __always_inline int pass_or_drop(u32 slot, u32 reason, u32 len, const int is_tunnel)
{
	count(slot, reason, len);
	return reason == REASON(is_tunnel, LOST) ? TC_ACT_SHOT : TCX_NEXT;
}

/* Looks up the destination. If that is the host and `may_route`, the packet is to be routed. */
static __always_inline u32 find_destination(struct packet *packet, const int is_tunnel,
					    int may_route)
{
	u32 len = packet->len - packet->start;
	u16 proto = packet->proto;
	u8 *ip = packet->ip;
	struct fdb *to;

	if (*packet->flags & DOMAIN_CHECKED && !is_sound(proto, ip, len))
		return REASON(is_tunnel, MALFORMED);
	to = packet->to = lookup(packet->netns, packet->domain, packet->front->inner.dest);
	if (!to || !(to->flags & FDB_ROUTER_MAC) || !may_route)
		return 0;
	if (!is_plain(proto, ip, len) || !(to->flags & router_flag(proto)))
		return REASON(is_tunnel, MALFORMED);
	if (hops(proto, ip) <= 1)
		return REASON(is_tunnel, TTL);
	packet->routed = 1;
	return 0;
}

/*
 * Admits a packet past the rules, if it would come to any: only with a valid verdict on its flow.
 * `device` is the input device of the inner packet. Sets the translated destination.
 */
static __always_inline u32 admit(struct packet *packet, const int is_tunnel, u32 device)
{
	struct __sk_buff *skb = packet->skb;
	struct flow_key *key = packet->key;
	struct fdb *to = packet->to;
	struct flow *flow;
	u32 at;
	int starts;

	if (!to ||
	    (is_tunnel ? !packet->routed && !(to->flags & FDB_LOCAL) : to->flags & FDB_LOCAL) ||
	    !comes_to_rules(*packet->flags, packet->proto, packet->routed))
		return 0;
	starts = flow_of(skb, packet->start, packet->proto, packet->ip, device, key);
	at = packet->start + header_length(key);
	if (starts == FLOW_STARTS)
		reopen(skb, key, at);
	if (starts || !is_verified(skb, at, key->protocol, is_tunnel))
		return REASON(is_tunnel, TRACKING);
	flow = verdict_of(skb, key, packet->live);
	/* The connection may have changed state, and needs a new verdict. */
	if (!flow || !bypasses(skb, at, key, flow)) {
		entered(key, packet->live, packet->now, !is_tunnel || asks_at_tunnel(key));
		return flow ? REASON(is_tunnel, TRACKING) : REASON(is_tunnel, VERDICT);
	}
	set_dest(packet->ip, flow, key->ipv6);
	packet->flow = flow;
	return 0;
}

/* Looks up the next hop of a routed packet, and changes the copies of its headers. */
static __always_inline u32 find_next_hop(struct packet *packet, const int is_tunnel)
{
	struct bpf_fib_lookup *fib;
	struct fdb *to;

	if ((packet->routed || *packet->flags & DOMAIN_CHECKED) &&
	    may_be_fragment(packet->proto, packet->ip))
		return REASON(is_tunnel, TRACKING);
	if (!packet->routed)
		return 0;
	fib = found_route();
	if (!fib || route(packet->skb, packet->domain, packet->proto, packet->ip, packet->longest,
			  fib, packet->flow))
		return REASON(is_tunnel, ROUTE);
	to = packet->to = lookup(packet->netns, fib->ifindex, fib->dmac);
	/* Routing to a bridge with a VXLAN device is untested. */
	if (!is_tunnel && to && to->vxlan != fib->ifindex)
		return ENCAP_ROUTE;
	__builtin_memcpy(&packet->front->inner.dest, fib->dmac, 6);
	__builtin_memcpy(&packet->front->inner.source, fib->smac, 6);
	age(packet->proto, packet->ip);
	return 0;
}

#endif
