/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The maps that src/programs/maps.rs keeps in step with the kernel, and the counters. */
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

/* The loader sets max_entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct mac_key);
	__type(value, struct fdb);
} fdb SEC(".maps");

/*
 * The FDB entries at accelerated ports again. A single lookup shows that the port is accelerated
 * and that the address has not moved.
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

/* Verdicts on flows. A new one replaces the oldest. The loader sets max_entries. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/*
 * One bit per verdict, at judged_bit(); several flows may share a bit. It identifies short
 * connections, which get no verdict, without a lookup in `flows`, whose memory is rarely in a
 * cache.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << JUDGED_BITS >> 6);
	__type(key, u32);
	__type(value, u64);
} judged SEC(".maps");

/* The windows of TCP connections with verdicts, by index. The loader sets max_entries. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct connection);
} connections SEC(".maps");

/* The directions of these connections, by tuple as packets arrive. The loader sets max_entries. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct tracked);
} tracked_flows SEC(".maps");

/* Flows seen on the slow path, while verdicts are given. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct flow_key);
	__type(value, struct seen);
} seen_flows SEC(".maps");

/* Requests for verdicts: struct flow_key. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} asked_flows SEC(".maps");

/* Time of the last segment of a flow that was left to be merged (is_merged), on each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MERGE_FLOWS);
	__type(key, u32);
	__type(value, u64);
} merged_flows SEC(".maps");

const volatile struct constants constants = {};

/*
 * IPv4 identifications. As in the kernel, several destinations share a counter (net/ipv4/route.c,
 * ip_idents). Each counter has its own cache line.
 */
struct {
	u32 next;
	u32 pad[15];
} idents[64] SEC(".bss") __attribute__((aligned(64)));

/*
 * Returns the number of the packet's namespace. All sandboxes share one copy of the programs, and
 * enter.bpf.c passes the number in the packet's control block. The verifier knows the constant, so
 * the other copy has no code for it.
 */
static __always_inline u32 netns_of(const struct __sk_buff *skb)
{
	return constants.in_sandbox ? skb->cb[0] : 0;
}

static __always_inline void count(u32 slot, u32 reason, u32 len)
{
	u32 key = slot * REASONS + reason;
	struct count *counter = bpf_map_lookup_elem(&counts, &key);

	if (counter) {
		counter->packets++;
		counter->bytes += len;
	}
}

/* The last check of the lists of functions at hooks, on each CPU. */
struct hook_check {
	u64 tick;
	u64 generation;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct hook_check);
} hook_checks SEC(".maps");

/*
 * Whether the functions at netfilter's hooks are those that the plan was made for. The kernel
 * sends no notification when a BPF program is attached to a hook. Checks once per tick, at most
 * 10 ms.
 */
static __always_inline int hooks_are(struct __sk_buff *skb, const struct state *live, u64 now)
{
	u32 zero = 0;
	struct hook_check *check = bpf_map_lookup_elem(&hook_checks, &zero);

	if (!check)
		return 0;
	if (check->tick == now && check->generation == live->generation)
		return 1;
	if (!lists_are(net_of(skb), live->hooks))
		return 0;
	check->tick = now;
	check->generation = live->generation;
	return 1;
}

/*
 * Returns the state if it is complete and fresh, otherwise NULL. `now` is the time of the last
 * tick: cheap, and at most 10 ms old.
 */
static __always_inline struct state *fresh(struct __sk_buff *skb, u64 now)
{
	u32 zero = 0;
	struct state *live = bpf_map_lookup_elem(&state, &zero);

	/* Odd: being rewritten. A heartbeat newer than `now` was written since the last tick. */
	if (!live || live->generation & 1 ||
	    (now > live->heartbeat && now - live->heartbeat > STALE_NS))
		return 0;
	/*
	 * The rules have changed and the daemon has not noticed yet. Only the NICs' namespace has
	 * rules.
	 */
	if (live->rules && !constants.in_sandbox &&
	    !rules_are(net_of(skb), live->rules))
		return 0;
	if (!constants.in_sandbox && !hooks_are(skb, live, now))
		return 0;
	return live;
}

/*
 * Whether a packet of this entry must take the slow path now, so that the kernel learns, counts and
 * keeps its entries from expiring.
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
