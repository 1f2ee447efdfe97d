/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The packet filter, written by `src/filter.rs`. */
#ifndef OVERLANE_OBSERVE_FILTER_H
#define OVERLANE_OBSERVE_FILTER_H

#include "event.h"

/* One end of a flow. Only the bits of the masks are compared. */
struct end {
	u8 address[16];
	u8 mask[16];
	u16 port;
	u16 port_mask;
};
_Static_assert(sizeof(struct end) == 36, "ABI of end");

/* A flow from the user, or its translated form from conntrack. It matches both directions. */
struct pattern {
	struct end from;
	struct end to;
	u8 protocol;
	u8 protocol_mask;
	u8 unused[2];
};
_Static_assert(sizeof(struct pattern) == 76, "ABI of pattern");

#define PATTERNS 8

struct filter {
	u32 patterns;	/* number of patterns; 0: every packet */
	u32 vni;
	u32 sample;	/* one packet in this many is sampled; 0: none */
	u8 with_vni;
	u8 with_spaces;	/* match only namespaces in `spaces` */
	u8 by_chance;	/* packets are sampled where they begin, and then followed */
	u8 with_device;
	char device[16];
	u16 payload;	/* payload bytes reported with the headers, at most PAYLOAD_BYTES */
	u8 with_bytes;	/* report the headers themselves */
	u8 with_expression;
	u32 window;	/* number of the current window; packets of earlier ones are not followed */
	u64 origins;	/* bit mask of `origins`: inode xor index, modulo 64 */
	u64 tunnels;	/* bit mask of `tunnels`: port modulo 64 */
	u8 in_windows;	/* user space polls in windows: count the costs, and do not wake it */
	u8 drops_only;
	u8 unused[2];
	u32 room;	/* packets that may still be sampled in windows, until user space writes the filter again */
	struct pattern pattern[PATTERNS];
};
_Static_assert(sizeof(struct filter) == 64 + PATTERNS * 76, "ABI of filter");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct filter);
} filters SEC(".maps");

/* Namespaces to match, by inode. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u32);
} spaces SEC(".maps");

/* UDP ports of VXLAN and Geneve devices, in network byte order; the value is an enum tunnel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u16);
	__type(value, u16);
} tunnels SEC(".maps");

/*
 * Devices through which packets enter this machine, by namespace and index: NICs, TAP devices.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u32);
} origins SEC(".maps");

/*
 * Returns the differing bits. Patterns are compared without branches, because the verifier
 * would follow each branch, for each pattern. An address on the stack must be aligned to 8 bytes.
 */
static __always_inline u64 differs(const struct end *end, const u8 *address, u16 port)
{
	const u64 *wanted = (const u64 *)end->address, *mask = (const u64 *)end->mask;
	const u64 *got = (const u64 *)address;

	return ((got[0] ^ wanted[0]) & mask[0]) | ((got[1] ^ wanted[1]) & mask[1]) |
	       ((port ^ end->port) & end->port_mask);
}

static __always_inline int is_device(const char *wanted, const char *got)
{
	const u64 *one = (const u64 *)wanted, *other = (const u64 *)got;

	return one[0] == other[0] && one[1] == other[1];
}

static __always_inline int is_of(const struct pattern *pattern, const struct flow *flow)
{
	u64 other = (pattern->protocol ^ flow->protocol) & pattern->protocol_mask;
	u64 there = other | differs(&pattern->from, flow->source, flow->source_port) |
		    differs(&pattern->to, flow->destination, flow->destination_port);
	u64 back = other | differs(&pattern->to, flow->source, flow->source_port) |
		   differs(&pattern->from, flow->destination, flow->destination_port);

	return !there || !back;
}

/* Whether packets are matched by their headers; otherwise all match. */
static __always_inline int wants_some(const struct filter *filter)
{
	return filter->patterns || filter->with_vni || filter->with_expression;
}

/* Whether it matches the flows and the VNI. */
static __always_inline int is_wanted(const struct filter *filter, const struct event *event)
{
	/* GRE without a key has no identifier, so a key of 0 must not match it. */
	if (filter->with_vni && (event->tunnel == NO_TUNNEL || event->tunnel == GRE ||
				 event->vni != filter->vni))
		return 0;
	if (!filter->patterns)
		return 1;
	for (u32 at = 0; at < PATTERNS; at++) {
		if (at >= filter->patterns)
			break;
		if (is_of(&filter->pattern[at], &event->inner))
			return 1;
		if (event->tunnel && is_of(&filter->pattern[at], &event->outer))
			return 1;
	}
	return 0;
}

#endif
