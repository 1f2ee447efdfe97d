/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Translated (NAT) forms of wanted flows. They are noted when a followed packet has new addresses,
 * so answers are wanted from the first one on, where they still have the server's own address. User
 * space adds those of older connections (`src/translated.rs`).
 */
#ifndef OVERLANE_OBSERVE_TRANSLATED_H
#define OVERLANE_OBSERVE_TRANSLATED_H

#include "kernel.h"
#include "event.h"
#include "filter.h"

struct nf_conn {
	unsigned long status;
} __core;

/* IPS_NAT_MASK: the connection's source or destination is translated. */
#define TRANSLATED (1 << 4 | 1 << 5)

struct ends {
	u8 source[16];
	u8 destination[16];
	u16 source_port;
	u16 destination_port;
	u32 protocol;
};
_Static_assert(sizeof(struct ends) == 40, "ABI of ends; a key has no padding");

/* Each direction of a flow is an entry. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct ends);
	__type(value, u32);
} translated SEC(".maps");

/*
 * Whether `translated` may have flows with this hash of their ends. Packets of most other flows
 * cost no look-up there.
 */
#define HASHES 4096

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HASHES);
	__type(key, u32);
	__type(value, u8);
} noted SEC(".maps");

/* Both directions of a flow have the same hash. */
static __always_inline u32 hash_of(const struct flow *flow)
{
	u16 source, destination;

	__builtin_memcpy(&source, flow->source + 14, sizeof(source));
	__builtin_memcpy(&destination, flow->destination + 14, sizeof(destination));
	return htons(source ^ destination ^ flow->source_port ^ flow->destination_port) &
	       (HASHES - 1);
}

/* Translations matter where packets are matched by flows only. */
static __always_inline int is_by_flows(const struct filter *filter)
{
	return filter->patterns && !filter->with_vni && !filter->with_expression;
}

/* Whether the packet belongs to a translated connection where it is now. */
static __always_inline int is_of_translated(struct sk_buff *skb)
{
	struct nf_conn *connection = (struct nf_conn *)(skb->_nfct & ~NFCT_INFOMASK);
	unsigned long status = 0;

	/* bpf_core_field_exists(): connection tracking may be absent, or a module without BTF. */
	if (!connection || !__builtin_preserve_field_info(((struct nf_conn *)0)->status, 2))
		return 0;
	bpf_probe_read_kernel(&status, sizeof(status), &connection->status);
	return (status & TRANSLATED) != 0;
}

static __always_inline void put_ends(struct ends *ends, const struct flow *flow, int is_reverse)
{
	const u8 *from = is_reverse ? flow->destination : flow->source;
	const u8 *to = is_reverse ? flow->source : flow->destination;

	__builtin_memcpy(ends->source, __builtin_assume_aligned(from, 4), sizeof(ends->source));
	__builtin_memcpy(ends->destination, __builtin_assume_aligned(to, 4),
			 sizeof(ends->destination));
	ends->source_port = is_reverse ? flow->destination_port : flow->source_port;
	ends->destination_port = is_reverse ? flow->source_port : flow->destination_port;
	ends->protocol = flow->protocol;
}

/* Notes the flow of a packet that was translated. */
static __attribute__((noinline)) int note_translated(const struct flow *flow)
{
	struct ends ends;
	u32 hash, one = 1;
	u8 *is_noted;

	if (!flow)
		return 0;
	put_ends(&ends, flow, 0);
	bpf_map_update_elem(&translated, &ends, &one, 0);
	put_ends(&ends, flow, 1);
	bpf_map_update_elem(&translated, &ends, &one, 0);
	hash = hash_of(flow);
	is_noted = bpf_map_lookup_elem(&noted, &hash);
	if (is_noted)
		*is_noted = 1;
	return 0;
}

/* Whether it is a translated form of a wanted flow. */
static __attribute__((noinline)) int is_translated(const struct flow *flow)
{
	struct ends ends;
	u8 *is_noted;
	u32 hash;

	if (!flow)
		return 0;
	hash = hash_of(flow);
	is_noted = bpf_map_lookup_elem(&noted, &hash);
	if (!is_noted || !*is_noted)
		return 0;
	put_ends(&ends, flow, 0);
	return bpf_map_lookup_elem(&translated, &ends) != 0;
}

#endif
