/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The maps: what src/programs/maps.rs keeps in step with the kernel, and what programs count.
 */
#ifndef OVERLANE_ACCEL_MAPS_H
#define OVERLANE_ACCEL_MAPS_H

#include "abi.h"
#include "kernel.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct state);
} state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct device);
	__type(value, struct port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct vtep_key);
	__type(value, struct vtep);
} vteps SEC(".maps");

/* For how many entries there is room, the loader says. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct mac_key);
	__type(value, struct fdb);
} fdb SEC(".maps");

/* The FDB's entries at accelerated ports once more: one look-up tells that the
 * port is one, and that the address is where it was.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct mac_key);
	__type(value, struct source);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SLOTS * REASONS);
	__type(key, u32);
	__type(value, struct count);
} counts SEC(".maps");

/* Verdicts on flows; the oldest makes room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* A bit for each verdict, at judged_bit(); others may have the same. Short connections, which
 * get none, are told by it without a look-up in `flows`, most of which is in no cache.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << JUDGED_BITS >> 6);
	__type(key, u32);
	__type(value, u64);
} judged SEC(".maps");

/* Flows on the slow path, where verdicts are given. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct seen);
} seen_flows SEC(".maps");

/* Flows that a verdict is asked for: struct flow_key. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} asked_flows SEC(".maps");

const volatile struct constants constants = {};


/* IP identifications, one counter for a few destinations, as the kernel has it
 * (net/ipv4/route.c, ip_idents); each on a cache line of its own.
 */
struct {
	u32 next;
	u32 pad[15];
} idents[64] SEC(".bss") __attribute__((aligned(64)));

static __always_inline void count(u32 slot, u32 reason, u32 len)
{
	u32 key = slot * REASONS + reason;
	struct count *counter = bpf_map_lookup_elem(&counts, &key);

	if (counter) {
		counter->packets++;
		counter->bytes += len;
	}
}

/* The packet goes on as it came; programs of others have their turn. */
static __always_inline int pass(struct __sk_buff *skb, u32 slot, u32 reason)
{
	count(slot, reason, skb->len);
	return TCX_NEXT;
}

/* The same where only the tenant's device is known. */
static __always_inline int pass_port(struct __sk_buff *skb, u32 reason)
{
	struct device device = { .netns = constants.netns, .ifindex = skb->ifindex };
	struct port *port = bpf_map_lookup_elem(&ports, &device);

	return pass(skb, port ? port->slot : 0, reason);
}

/* The state where it is whole and fresh, NULL otherwise. The time is that
 * of the last tick: cheaper, and old by 10 ms at the most.
 */
static __always_inline struct state *fresh(struct __sk_buff *skb, u64 now)
{
	u32 zero = 0;
	struct state *live = bpf_map_lookup_elem(&state, &zero);

	/* Odd: being rewritten. A heartbeat from the future is one between two
	 * readings of the clock.
	 */
	if (!live || live->generation & 1 ||
	    (now > live->heartbeat && now - live->heartbeat > STALE_NS))
		return 0;
	/* However late the daemon hears of it. The NICs' namespace has the rules. */
	if (live->rules && !constants.netns &&
	    !rules_are(bpf_cast_to_kern_ctx(skb), live->rules))
		return 0;
	return live;
}

/* Whether the slow path is due a packet of this entry: it learns from it, ages
 * by it and counts it.
 */
static __always_inline int due(u64 *last, u64 now, u64 interval)
{
	if (now - *last <= interval)
		return 0;
	*last = now;
	return 1;
}

static __always_inline struct fdb *lookup(u32 where, u32 domain, const u16 *mac)
{
	struct mac_key key = {
		.device = domain, .mac = { mac[0], mac[1], mac[2] }, .netns = where
	};

	return bpf_map_lookup_elem(&fdb, &key);
}

#endif
