/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Fragments of IP packets: a first one has the ports, and what a tunnel's packet carries. It
 * leaves them here, for those that come later.
 */
#ifndef OVERLANE_OBSERVE_FRAGMENTS_H
#define OVERLANE_OBSERVE_FRAGMENTS_H

#include "event.h"
#include "headers.h"

/* What fragments of one packet have in common (RFC 791, RFC 8200, 4.5). */
struct datagram {
	u8 source[16];
	u8 destination[16];
	u32 id;
	/* Of IPv4; of IPv6, where it may differ from fragment to fragment, 0. */
	u32 protocol;
};

/* The first fragment, by the addresses of the packet that was cut, wherever it is seen: its
 * fragments come by several CPUs, and may overtake each other between namespaces.
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

/* Whether it is the packet of the tunnel around a first fragment that this is a fragment of, not
 * the packet in it.
 */
static __always_inline int is_of_tunnel(const struct event *first, const struct flow *flow)
{
	const u32 *one = (const u32 *)first->outer.source, *other = (const u32 *)flow->source;

	return first->tunnel != NO_TUNNEL && is_first_fragment(&first->outer) &&
	       first->outer.id == flow->id &&
	       !((one[0] ^ other[0]) | (one[1] ^ other[1]) | (one[2] ^ other[2]) |
		 (one[3] ^ other[3]));
}

/* Gives a later fragment the ports of its first one, and what is in that. Whether that one was
 * noted.
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

/* Notes a first fragment: the packet itself, or that of the tunnel around it, or both. */
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
