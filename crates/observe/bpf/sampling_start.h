/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Selects the packets whose headers are parsed: packets that are followed, and packets that may
 * begin to be followed. All other packets only run this code, so it makes few calls.
 */
#ifndef OVERLANE_OBSERVE_BEGINS_H
#define OVERLANE_OBSERVE_BEGINS_H

#include "kernel.h"
#include "event.h"
#include "filter.h"
#include "headers.h"
#include "followed.h"
#include "translated.h"

/* UINT16_MAX: the header's offset is not set. */
#define NOT_SET 0xffff

struct draft;

struct seen {
	struct sk_buff *skb;
	struct net_device *dev;
	struct sock *sk;
	/* Looked up once per packet and place. */
	const struct filter *filter;
	struct draft *draft;
	u64 location;
	u32 reason;
	u8 kind;
	/* enum sampling_start */
	u8 sampling_start;
	/* whether it is checked only as a later fragment */
	u8 by_fragment;
};

/* Where a packet may be sampled: only where it begins on this machine. */
enum sampling_start {
	NEVER = 0,
	ALWAYS = 1,
	/* passed by its socket to the device of its route */
	AT_SOCKETS = 2,
	AT_ORIGINS = 3,
	AFTER_CUTTING = 4,
};

/*
 * The device to which this CPU passed the last sampled GSO packet. If it is segmented there,
 * its segments are sent next, and are followed as well.
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

/* When a GSO packet that matches the filter was last queued, in 2^20 ns; 0: never. */
static volatile u32 queued_to_be_cut;

/*
 * How long its segments may take to leave a queue, in 2^20 ns: as long as a packet may go
 * unseen (PATIENCE in `src/journeys.rs`).
 */
#define SEGMENTS_COME 5000

/* When a first fragment was last sampled, in 2^20 ns, and in which window; 0: never. */
static volatile u32 fragments_since, fragments_window;

/* How long later fragments are expected after a first one was sampled, in 2^20 ns. */
#define FRAGMENTS_COME 100

static __always_inline u32 now(void)
{
	return bpf_ktime_get_ns() >> 20;
}

static __always_inline int is_origin(const struct filter *filter, struct net_device *dev)
{
	u32 inode = dev->nd_net.net->ns.inum, index = dev->ifindex;
	u64 key = (u64)inode << 32 | index;

	/* The mask excludes most devices without a map look-up. */
	if (!(filter->origins >> ((inode ^ index) & 63) & 1))
		return 0;
	return bpf_map_lookup_elem(&origins, &key) != 0;
}

/*
 * Whether a device is the first one that a socket's packet is passed to: it is in the socket's
 * namespace, and the packet's route names it. It is not a bridge port, nor the far end of a
 * veth pair.
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

/*
 * Whether one more packet may be followed in this window. After an idle time the sample rate is
 * high; without this limit a flood would keep user space busy before it can end the window.
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

/* Whether the packet is sampled now. */
static __always_inline int is_to_be_chosen(const struct filter *filter, const struct seen *seen)
{
	u32 zero = 0;

	switch (seen->sampling_start) {
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
	/* The window selects no more packets; those under way are followed to their ends. */
	if (!filter->sample)
		return 0;
	if (filter->sample > 1 && bpf_get_prandom_u32() % filter->sample)
		return 0;
	if (seen->sampling_start != ALWAYS &&
	    (!seen->dev || !(seen->sampling_start == AT_SOCKETS ? is_from_socket(seen->skb, seen->dev) :
							  is_origin(filter, seen->dev))))
		return 0;
	return is_room(filter);
}

/* Whether a packet that was not sampled may be a fragment of one that was. */
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

/*
 * A packet that is not followed was passed to a device, so the next packet sent there is not a
 * segment of a followed one.
 */
static __always_inline void pass_by(u8 kind)
{
	u32 zero = 0;
	struct cut *cut = kind == QUEUED ? bpf_map_lookup_elem(&cutting, &zero) : 0;

	if (cut)
		cut->device = 0;
}

/* Length of an IP header without options and extensions, and of the ports. */
#define PLAIN_BYTES (sizeof(struct ipv6hdr) + 4)

/* Protocols whose headers begin with ports, by bit. */
#define WITH_PORTS (1ULL << IPPROTO_TCP | 1ULL << IPPROTO_UDP)

/* Reads addresses, protocol and ports of plain TCP, UDP or ICMP; 0: not plain. */
static __always_inline int read_plain(struct flow *flow, const u8 *head)
{
	const struct ipv6hdr *six = (const void *)head;
	const struct iphdr *four = (const void *)head;
	u32 ports;

	__builtin_memset(flow, 0, sizeof(*flow));
	if (head[0] == 0x45) {
		/* The first fragment has the ports, so fragments take the slow path. */
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
		/* IP options, or not IP. */
		return 0;
	}
	/* Without branches, because the verifier would follow each protocol through later code. */
	if (flow->protocol >= 64)
		return 0;
	__builtin_memcpy(&ports, &flow->source_port, sizeof(ports));
	ports *= WITH_PORTS >> flow->protocol & 1;
	__builtin_memcpy(&flow->source_port, &ports, sizeof(ports));
	/* Excludes GRE, and fragments and other extensions of IPv6. */
	return (WITH_PORTS | 1ULL << IPPROTO_ICMP) >> flow->protocol & 1;
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

/*
 * Whether the packet in the tunnel whose VXLAN header is at `at` certainly does not match the
 * filter.
 */
static __attribute__((noinline)) int is_inside_of_others(const struct filter *filter, const u8 *at)
{
	/* The two bytes before it align the inner IP header. */
	u8 room[2 + VXLAN_HEADER + ETH_HLEN + PLAIN_BYTES] __attribute__((aligned(8)));
	u8 *head = room + 2;
	struct flow flow __attribute__((aligned(8)));
	u32 vni;
	u16 type;

	if (!filter || bpf_probe_read_kernel(head, sizeof(room) - 2, at))
		return 0;
	/*
	 * Without a VNI, `read_tunnel` does not treat it as a tunnel's packet either, and the
	 * outer flow does not match.
	 */
	if (!(head[0] & VXLAN_HAS_VNI))
		return 1;
	vni = head[4] << 16 | head[5] << 8 | head[6];
	if (filter->with_vni && vni != filter->vni)
		return 1;
	type = head[VXLAN_HEADER + ETH_HLEN - 2] << 8 | head[VXLAN_HEADER + ETH_HLEN - 1];
	if (!filter->patterns || (type != ETH_P_IP && type != ETH_P_IPV6) ||
	    !read_plain(&flow, head + VXLAN_HEADER + ETH_HLEN))
		return 0;
	return !is_named(filter, &flow) && !(is_by_flows(filter) && is_translated(&flow));
}

/*
 * Whether the packet whose IP header is at `at` certainly does not match the filter, by its
 * outer header: it is plain TCP, UDP or ICMP of another flow. A value above 1 is the offset of
 * a VXLAN header, whose inner packet decides.
 */
static __attribute__((noinline)) u32 is_outside_of_others(const struct filter *filter, const u8 *at)
{
	u8 head[PLAIN_BYTES] __attribute__((aligned(8)));
	struct flow flow __attribute__((aligned(8)));
	u16 *kind;

	if (!filter || bpf_probe_read_kernel(head, sizeof(head), at) || !read_plain(&flow, head) ||
	    is_named(filter, &flow) || (is_by_flows(filter) && is_translated(&flow)))
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

/*
 * Whether a packet certainly does not match the filter. This takes one read, or two for a
 * tunnel. The two functions are called one after the other, because nested calls share 512
 * bytes of stack, at least up to Linux 6.12.
 */
static __always_inline int is_of_others(const struct filter *filter, const u8 *at)
{
	u32 others = is_outside_of_others(filter, at);

	return others > 1 ? is_inside_of_others(filter, at + others) : others;
}

/*
 * Whether a packet without a mark may match the filter. Headers are only compared where the
 * packet is new, or where its addresses may have changed since the last place.
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
		/* It would have been seen before, when it was received or sent. */
		return 0;
	case SENT:
		/* It would have been seen when it was queued, unless it is a segment. */
		if (!queued_to_be_cut || now() - queued_to_be_cut > SEGMENTS_COME)
			return 0;
		break;
	case BACKLOG:
		/*
		 * It would have been seen when it was sent, unless it enters the machine here.
		 */
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

/* Whether the packet's headers have to be parsed. */
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
	/* Every packet matches. */
	if (!wants_some(filter))
		return 1;
	return is_known || may_be_wanted(filter, seen);
}

#endif
