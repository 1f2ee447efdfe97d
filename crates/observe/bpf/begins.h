/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which packets are looked at closely: those that are followed, and those that may begin to be.
 * All others pass here, so it has few calls.
 */
#ifndef OVERLANE_OBSERVE_BEGINS_H
#define OVERLANE_OBSERVE_BEGINS_H

#include "kernel.h"
#include "event.h"
#include "filter.h"
#include "headers.h"
#include "followed.h"

/* UINT16_MAX: the header's place is not set. */
#define NOT_SET 0xffff

struct seen {
	struct sk_buff *skb;
	struct net_device *dev;
	struct sock *sk;
	/* Looked up once for a packet at a place. */
	const struct filter *filter;
	u64 location;
	u32 reason;
	u8 kind;
	/* enum begins */
	u8 begins;
	/* whether it is looked at as a later fragment only */
	u8 by_fragment;
};

/* Whether a packet may be chosen by chance: where it begins on this machine. */
enum begins {
	NEVER = 0,
	ALWAYS = 1,
	/* given by its socket to the device of its route */
	AT_SOCKETS = 2,
	AT_ORIGINS = 3,
	AFTER_CUTTING = 4,
};

/* The device that this CPU gave the last chosen GSO packet to: if it is cut there, its segments
 * are sent next, and are chosen as well.
 */
struct cut {
	u64 device;	/* 0: none */
	u32 window;
	u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cut);
} cutting SEC(".maps");

/* When a GSO packet that a filter wants was last queued, in 2^20 ns; 0: none was. */
static volatile u32 queued_to_be_cut;

/* How long segments of it may come out of a queue, in 2^20 ns: as long as a packet is waited
 * for (PATIENCE of `src/journeys.rs`).
 */
#define SEGMENTS_COME 5000

/* When a first fragment was chosen by chance, in 2^20 ns, and in which window; 0: none was. */
static volatile u32 fragments_since, fragments_window;

/* How long later fragments are looked for after a first one was chosen by chance, in 2^20 ns. */
#define FRAGMENTS_COME 100

static __always_inline u32 now(void)
{
	return bpf_ktime_get_ns() >> 20;
}

static __always_inline int is_origin(const struct filter *filter, struct net_device *dev)
{
	u32 inode = dev->nd_net.net->ns.inum, index = dev->ifindex;
	u64 key = (u64)inode << 32 | index;

	/* Most devices are none. */
	if (!(filter->origins >> ((inode ^ index) & 63) & 1))
		return 0;
	return bpf_map_lookup_elem(&origins, &key) != 0;
}

/* Whether a device is the first that a socket's packet is given to: of the socket's namespace,
 * and the one that its route names. A bridge's port or what is behind a veth is not.
 */
static __always_inline int is_from_socket(struct sk_buff *skb, struct net_device *dev)
{
	struct dst_entry *route = (struct dst_entry *)(skb->_skb_refdst & SKB_DST_PTRMASK);
	struct sock *owner = skb->sk;
	struct net_device *out = dev;

	if (!owner || owner->__sk_common.skc_net.net != dev->nd_net.net)
		return 0;
	if (route)
		bpf_probe_read_kernel(&out, sizeof(out), &route->dev);
	return out == dev;
}

/* Whether there is room for one more packet. A flood after a calm time, in which all are followed,
 * would keep user space busy before it can end the window.
 */
static __always_inline int is_room(const struct filter *filter)
{
	if (!filter->in_windows)
		return 1;
	if ((s32)filter->room <= 0)
		return 0;
	__sync_fetch_and_add((u32 *)&filter->room, -1);
	return 1;
}

/* Whether it is to be chosen by chance, now. */
static __always_inline int is_to_be_chosen(const struct filter *filter, const struct seen *seen)
{
	u32 zero = 0;

	switch (seen->begins) {
	case NEVER:
		return 0;
	case AFTER_CUTTING: {
		struct cut *cut = bpf_map_lookup_elem(&cutting, &zero);

		return cut && cut->device && cut->device == (u64)seen->dev &&
		       cut->window == filter->window;
	}
	default:
		break;
	}
	/* None: those under way are followed to their ends. */
	if (!filter->sample)
		return 0;
	if (filter->sample > 1 && bpf_get_prandom_u32() % filter->sample)
		return 0;
	if (seen->begins != ALWAYS &&
	    (!seen->dev || !(seen->begins == AT_SOCKETS ? is_from_socket(seen->skb, seen->dev) :
							  is_origin(filter, seen->dev))))
		return 0;
	return is_room(filter);
}

/* Whether a packet that was not chosen may be a fragment of one that was. */
static __always_inline int may_be_fragment(const struct filter *filter)
{
	u32 since = fragments_since;

	if (!since || fragments_window != filter->window)
		return 0;
	if (now() - since <= FRAGMENTS_COME)
		return 1;
	fragments_since = 0;
	return 0;
}

/* A packet that is not followed is given to a device: what is sent there next is not cut from
 * one that is.
 */
static __always_inline void pass_by(u8 kind)
{
	u32 zero = 0;
	struct cut *cut = kind == QUEUED ? bpf_map_lookup_elem(&cutting, &zero) : 0;

	if (cut)
		cut->device = 0;
}

/* The IP header of a packet without options and extensions, with the ports behind it. */
#define PLAIN_BYTES (sizeof(struct ipv6hdr) + 4)

/* Reads addresses, protocol and ports of plain TCP, UDP or ICMP; 0: it is something else. */
static __always_inline int read_plain(struct flow *flow, const u8 *head)
{
	const struct ipv6hdr *six = (const void *)head;
	const struct iphdr *four = (const void *)head;

	__builtin_memset(flow, 0, sizeof(*flow));
	if (head[0] == 0x45) {
		/* Others of it have the ports, and are noted. */
		if (four->frag_off & htons(MORE_FRAGMENTS | FRAGMENT_OFFSET))
			return 0;
		flow->source[10] = flow->source[11] = 0xff;
		__builtin_memcpy(flow->source + 12, &four->saddr, 4);
		flow->destination[10] = flow->destination[11] = 0xff;
		__builtin_memcpy(flow->destination + 12, &four->daddr, 4);
		flow->protocol = four->protocol;
		__builtin_memcpy(&flow->source_port, head + sizeof(*four), 4);
	} else if (head[0] >> 4 == 6) {
		__builtin_memcpy(flow->source, six->source, 16);
		__builtin_memcpy(flow->destination, six->destination, 16);
		flow->protocol = six->next;
		__builtin_memcpy(&flow->source_port, head + sizeof(*six), 4);
	} else {
		/* With options, or what is no IP at all. */
		return 0;
	}
	if (flow->protocol == IPPROTO_ICMP)
		flow->source_port = flow->destination_port = 0;
	/* Not GRE, fragments and other extensions of IPv6. */
	return flow->protocol == IPPROTO_ICMP || flow->protocol == IPPROTO_UDP ||
	       flow->protocol == IPPROTO_TCP;
}

static __always_inline int is_named(const struct filter *filter, const struct flow *flow)
{
	for (u32 at = 0; at < PATTERNS; at++) {
		if (at >= filter->patterns)
			break;
		if (is_of(&filter->pattern[at], flow))
			return 1;
	}
	return 0;
}

/* Whether the packet in the tunnel whose VXLAN header is at `at` is certainly none that the filter
 * wants.
 */
static __attribute__((noinline)) int is_inside_of_others(const struct filter *filter, const u8 *at)
{
	/* Two bytes before it align the inner IP header. */
	u8 room[2 + VXLAN_HEADER + ETH_HLEN + PLAIN_BYTES] __attribute__((aligned(8)));
	u8 *head = room + 2;
	struct flow flow;
	u32 vni;
	u16 type;

	if (!filter || bpf_probe_read_kernel(head, sizeof(room) - 2, at))
		return 0;
	/* Without it, it is no tunnel's packet to `read_tunnel` either, but the outer flow's. */
	if (!(head[0] & VXLAN_HAS_VNI))
		return 1;
	vni = head[4] << 16 | head[5] << 8 | head[6];
	if (filter->with_vni && vni != filter->vni)
		return 1;
	type = head[VXLAN_HEADER + ETH_HLEN - 2] << 8 | head[VXLAN_HEADER + ETH_HLEN - 1];
	if (!filter->patterns || (type != ETH_P_IP && type != ETH_P_IPV6) ||
	    !read_plain(&flow, head + VXLAN_HEADER + ETH_HLEN))
		return 0;
	return !is_named(filter, &flow);
}

/* Whether the packet whose IP header is at `at` is certainly none that the filter wants, by its own
 * header: it is plain TCP, UDP or ICMP of other flows. More than 1: so many bytes behind `at` is the
 * header of VXLAN, and what is inside decides.
 */
static __attribute__((noinline)) u32 is_outside_of_others(const struct filter *filter, const u8 *at)
{
	u8 head[PLAIN_BYTES] __attribute__((aligned(8)));
	struct flow flow;
	u16 *kind;

	if (!filter || bpf_probe_read_kernel(head, sizeof(head), at) || !read_plain(&flow, head) ||
	    is_named(filter, &flow))
		return 0;
	if (flow.protocol != IPPROTO_UDP ||
	    !(filter->tunnels >> (htons(flow.destination_port) & 63) & 1))
		return 1;
	kind = bpf_map_lookup_elem(&tunnels, &flow.destination_port);
	if (!kind)
		return 1;
	if (*kind != VXLAN)
		return 0;
	return (head[0] >> 4 == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) + 8;
}

/* Whether a packet is certainly none that the filter wants. One read does, or two in a tunnel. The
 * two functions are called one after the other: nested calls have 512 bytes of stack together, up to
 * Linux 6.12 at least.
 */
static __always_inline int is_of_others(const struct filter *filter, const u8 *at)
{
	u32 others = is_outside_of_others(filter, at);

	return others > 1 ? is_inside_of_others(filter, at + others) : others;
}

/* Whether a packet that is not marked may be one that the filter wants. Its headers are compared
 * where it is new, or may have other addresses than where it was before.
 */
static __always_inline int may_be_wanted(const struct filter *filter, const struct seen *seen)
{
	struct sk_buff *skb = seen->skb;
	u8 *head = skb->head, *data = skb->data;
	u16 network = skb->network_header;
	const u8 *at = network && network != NOT_SET ? head + network : 0;

	switch (seen->kind) {
	case SOCKET:
	case CONSUMED:
		/* It was received, or sent, before. */
		return 0;
	case SENT:
		/* It was queued before, unless it is a segment. */
		if (!queued_to_be_cut || now() - queued_to_be_cut > SEGMENTS_COME)
			return 0;
		break;
	case BACKLOG:
		/* It was sent before, unless it comes in here. */
		if (!seen->dev || !is_origin(filter, seen->dev))
			return 0;
		at = data;
		break;
	case GRO:
	case RECEIVED:
		at = data;
		break;
	default:
		break;
	}
	if (!at || !(filter->patterns || filter->with_vni))
		return 1;
	return !is_of_others(filter, at);
}

/* Whether it is to be looked at closely. */
static __always_inline int is_looked_at(const struct filter *filter, struct seen *seen)
{
	u64 address = (u64)seen->skb;
	int is_known = is_marked(seen->skb);

	if (filter->by_chance) {
		if (is_known && was_chosen(filter, address))
			return 1;
		if (is_to_be_chosen(filter, seen))
			return 1;
		seen->by_fragment = may_be_fragment(filter);
		if (!seen->by_fragment)
			pass_by(seen->kind);
		return seen->by_fragment;
	}
	/* Every packet is wanted. */
	if (!wants_some(filter))
		return 1;
	return is_known || may_be_wanted(filter, seen);
}

#endif
