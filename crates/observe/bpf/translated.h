/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Translated (NAT) forms of wanted flows, seen when a followed packet has new addresses. Answers
 * have these addresses before they are translated back, so they are wanted from the first packet
 * on. User space reads conntrack too rarely for that.
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
_Static_assert(sizeof(struct ends) == 40, "no padding in a key");

/* Both directions of each flow. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct ends);
	__type(value, u32);
} translated SEC(".maps");

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

	/* bpf_core_field_exists(): connection tracking is a module, or absent. */
	if (!connection || !__builtin_preserve_field_info(((struct nf_conn *)0)->status, 2))
		return 0;
	bpf_probe_read_kernel(&status, sizeof(status), &connection->status);
	return (status & TRANSLATED) != 0;
}

static __always_inline void put_ends(struct ends *ends, const struct flow *flow, int is_reverse)
{
	const u8 *from = is_reverse ? flow->destination : flow->source;
	const u8 *to = is_reverse ? flow->source : flow->destination;

	__builtin_memcpy(ends->source, from, sizeof(ends->source));
	__builtin_memcpy(ends->destination, to, sizeof(ends->destination));
	ends->source_port = is_reverse ? flow->destination_port : flow->source_port;
	ends->destination_port = is_reverse ? flow->source_port : flow->destination_port;
	ends->protocol = flow->protocol;
}

/* Stores the flow of a packet that was translated. */
static __attribute__((noinline)) int note_translated(const struct event *event)
{
	struct ends ends;
	u32 one = 1;

	put_ends(&ends, &event->inner, 0);
	bpf_map_update_elem(&translated, &ends, &one, 0);
	put_ends(&ends, &event->inner, 1);
	bpf_map_update_elem(&translated, &ends, &one, 0);
	return 0;
}

/* Whether it is a packet of a translated form of a wanted flow. */
static __attribute__((noinline)) int is_translated(const struct event *event)
{
	struct ends ends;

	put_ends(&ends, &event->inner, 0);
	return bpf_map_lookup_elem(&translated, &ends) != 0;
}

#endif
