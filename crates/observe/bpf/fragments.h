/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Fragments of IP packets. Only a first fragment has the ports and the headers in a tunnel.
 * They are stored here for the later fragments.
 */
#ifndef OVERLANE_OBSERVE_FRAGMENTS_H
#define OVERLANE_OBSERVE_FRAGMENTS_H

#include "event.h"
#include "headers.h"

/* Fields that the fragments of one packet have in common (RFC 791; RFC 8200, section 4.5). */
struct datagram {
	u8 source[16];
	u8 destination[16];
	u32 id;
	/* IPv4 only. 0 for IPv6, where it may differ between fragments. */
	u32 protocol;
};

/*
 * First fragments, by the addresses of the fragmented packet, regardless of the place:
 * fragments are processed by several CPUs, and may overtake each other between namespaces.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct datagram);
	__type(value, struct event);
} firsts SEC(".maps");

static __always_inline int is_later_fragment(const struct flow *flow)
{
	return (flow->fragment & htons(FRAGMENT_OFFSET)) != 0;
}

static __always_inline int is_first_fragment(const struct flow *flow)
{
	return (flow->fragment & htons(MORE_FRAGMENTS | FRAGMENT_OFFSET)) ==
	       htons(MORE_FRAGMENTS);
}

/* Whether it is an IPv4 address that is mapped into IPv6. */
static __always_inline int is_mapped(const u8 *address)
{
	const u32 *words = (const u32 *)address;

	return !words[0] && !words[1] && words[2] == htonl(0xffff);
}

static __always_inline void put_key(struct datagram *key, const struct flow *flow)
{
	__builtin_memcpy(key->source, flow->source, sizeof(key->source));
	__builtin_memcpy(key->destination, flow->destination, sizeof(key->destination));
	key->id = flow->id;
	key->protocol = is_mapped(flow->source) ? flow->protocol : 0;
}

/*
 * Whether this is a fragment of the outer packet of a first fragment's tunnel, and not of the
 * inner packet.
 */
static __always_inline int is_of_tunnel(const struct event *first, const struct flow *flow)
{
	const u32 *one = (const u32 *)first->outer.source, *other = (const u32 *)flow->source;

	return first->tunnel != NO_TUNNEL && is_first_fragment(&first->outer) &&
	       first->outer.id == flow->id &&
	       !((one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]) |
		 (one[3] ^ other[3]));
}

/*
 * Copies the ports and inner headers of the first fragment to a later one; returns whether the
 * first fragment was stored.
 */
static __attribute__((noinline)) int find_first(struct event *event)
{
	struct flow *flow = &event->inner;
	const struct event *first;
	const struct flow *cut;
	struct datagram key;
	u32 is_tunnel;

	put_key(&key, flow);
	first = bpf_map_lookup_elem(&firsts, &key);
	if (!first)
		return 0;
	is_tunnel = is_of_tunnel(first, flow);
	cut = is_tunnel ? &first->outer : &first->inner;
	flow->source_port = cut->source_port;
	flow->destination_port = cut->destination_port;
	flow->protocol = cut->protocol;
	if (is_tunnel && event->tunnel == NO_TUNNEL) {
		event->outer = *flow;
		event->inner = first->inner;
		event->vni = first->vni;
		event->tunnel = first->tunnel;
	}
	return 1;
}

/* Stores a first fragment: the packet itself, the outer packet of its tunnel, or both. */
static __attribute__((noinline)) int note_first(const struct event *event)
{
	struct datagram key;

	if (is_first_fragment(&event->inner)) {
		put_key(&key, &event->inner);
		bpf_map_update_elem(&firsts, &key, event, 0);
	}
	if (event->tunnel != NO_TUNNEL && is_first_fragment(&event->outer)) {
		put_key(&key, &event->outer);
		bpf_map_update_elem(&firsts, &key, event, 0);
	}
	return 0;
}

#endif
