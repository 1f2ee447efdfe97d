// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counting programs: they count packets at a VXLAN device by the addresses that a plan uses, and
 * pass every packet. src/programs/look.rs reads the counts.
 */
#include "bpf.h"

#define BPF_F_NO_PREALLOC 1
#define BPF_NOEXIST 1

static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 u64 flags) = (void *)2;

/* Directions. */
#define FROM_WIRE 0
#define TO_WIRE 1

/* Classes. */
#define IPV4 0
#define IPV6 1
#define GROUP 2
#define OTHER 3
#define CLASSES 4

struct seen {
	/* Input device of the packet. 0: sent by the host itself. */
	u32 from;
	u8 to_wire;
	u8 class;
	u8 destination[6];
	u8 source[6];
	u8 padding[2];
};

struct amount {
	u64 packets;
	u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct seen);
	__type(value, struct amount);
} seen SEC(".maps");

/* Packets that found no free entry in `seen`, by direction and class. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * CLASSES);
	__type(key, u32);
	__type(value, struct amount);
} rest SEC(".maps");

static __always_inline void add(struct amount *amount, u64 bytes)
{
	if (!amount)
		return;
	__sync_fetch_and_add(&amount->packets, 1);
	__sync_fetch_and_add(&amount->bytes, bytes);
}

static __always_inline int look(struct __sk_buff *skb, u8 to_wire)
{
	struct seen key = { .to_wire = to_wire };
	struct amount nothing = {}, *amount;
	u32 at;

	if (bpf_skb_load_bytes(skb, 0, key.destination, 12))
		return TCX_NEXT;
	/*
	 * For packets from the wire, skb_iif is the underlay's or the device's own index: useless.
	 */
	if (to_wire)
		key.from = skb->ingress_ifindex;
	if (key.destination[0] & 1)
		key.class = GROUP;
	else if (skb->vlan_present)
		key.class = OTHER;
	else if (skb->protocol == htons(ETH_P_IP))
		key.class = IPV4;
	else if (skb->protocol == htons(ETH_P_IPV6))
		key.class = IPV6;
	else
		key.class = OTHER;
	amount = bpf_map_lookup_elem(&seen, &key);
	if (!amount) {
		/* Full, or another CPU added the entry: look it up again. */
		bpf_map_update_elem(&seen, &key, &nothing, BPF_NOEXIST);
		amount = bpf_map_lookup_elem(&seen, &key);
	}
	if (!amount) {
		/* No free entry: count without addresses. */
		at = to_wire * CLASSES + key.class;
		amount = bpf_map_lookup_elem(&rest, &at);
	}
	add(amount, skb->len);
	return TCX_NEXT;
}

SEC("tcx/ingress")
int look_from_wire(struct __sk_buff *skb)
{
	return look(skb, FROM_WIRE);
}

SEC("tcx/egress")
int look_to_wire(struct __sk_buff *skb)
{
	return look(skb, TO_WIRE);
}
