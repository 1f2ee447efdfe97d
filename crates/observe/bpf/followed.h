/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Packets that are followed, by the kernel's address of the skb. Most packets are not: checking
 * a mark shows that without a call.
 */
#ifndef OVERLANE_OBSERVE_FOLLOWED_H
#define OVERLANE_OBSERVE_FOLLOWED_H

#include "kernel.h"
#include "event.h"
#include "filter.h"
#include "fragments.h"

struct followed {
	u64 same;	/* identity of the packet: not every end of a packet is seen, and its
			 * address is soon reused */
	u32 window;	/* of `struct filter`, when it was chosen */
	u32 mark;	/* its index in `marks` */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, struct followed);
} chosen SEC(".maps");

/*
 * Number of addresses in `chosen` that share a mark; 0: none. When the LRU map evicts an entry,
 * its mark stays. Packets with it then cost a look-up that finds nothing.
 */
#define MARK_BITS 14
static u32 marks[1 << MARK_BITS];

#define MARK(at) (&marks[(at) & ((1 << MARK_BITS) - 1)])

/*
 * The verifier forbids arithmetic on a packet's address, but allows the difference of two
 * pointers.
 */
static __always_inline u32 mark_of(struct sk_buff *skb)
{
	u64 apart = (u64)skb;

	asm volatile("%0 -= %1" : "+r"(apart) : "r"(marks));
	/* Addresses of skbs are multiples of 64; the multiplier is Knuth's. */
	return (u32)((apart >> 6) * 2654435761u) >> (32 - MARK_BITS);
}

static __always_inline int is_marked(struct sk_buff *skb)
{
	return *(volatile u32 *)MARK(mark_of(skb)) != 0;
}

/* Value of `same` that no packet has: the packet was seen for the last time. */
#define SPENT (~0ULL)

static __always_inline void choose(const struct filter *filter, struct sk_buff *skb, u64 same)
{
	u64 address = (u64)skb;
	struct followed followed = {
		.same = same,
		.window = filter->window,
		.mark = mark_of(skb),
	};

	if (!bpf_map_update_elem(&chosen, &address, &followed, BPF_NOEXIST))
		__sync_fetch_and_add(MARK(followed.mark), 1);
	else
		bpf_map_update_elem(&chosen, &address, &followed, 0);
}

static __always_inline void forget(u64 skb)
{
	struct followed *known = bpf_map_lookup_elem(&chosen, &skb);
	u32 mark;

	if (!known)
		return;
	mark = known->mark;
	/* Another CPU may have deleted it first. */
	if (!bpf_map_delete_elem(&chosen, &skb))
		__sync_fetch_and_add(MARK(mark), -1);
}

/* Whether this packet may be one that was sampled, in this window and not in an earlier one. */
static __always_inline int was_chosen(const struct filter *filter, u64 skb)
{
	struct followed *known = bpf_map_lookup_elem(&chosen, &skb);

	return known && known->window == filter->window;
}

/* Marks an identification of IPv4. IPv6 only has one in fragments. */
#define OF_IPV4 0x80000000

/* Headers of a packet that are the same at every place. */
static __always_inline u64 identity(const struct flow *flow)
{
	u32 high = flow->sequence ^ (u32)flow->protocol << 24, id = htonl(flow->id);

	id = is_mapped(flow->source) ? id | OF_IPV4 : id & ~OF_IPV4;
	return (u64)high << 32 | id;
}

/* Whether a packet at the address of a followed one is still the same packet. */
static __always_inline int is_still(u64 skb, const struct flow *flow)
{
	struct followed *known = bpf_map_lookup_elem(&chosen, &skb);
	u64 got = identity(flow);

	if (known && known->same == got)
		return 1;
	/* An IPv6 packet that was fragmented or reassembled. */
	if (known && known->same >> 32 == got >> 32 && (!(u32)known->same || !(u32)got))
		return 1;
	forget(skb);
	return 0;
}

#endif
