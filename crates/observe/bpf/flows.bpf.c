// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts, by flow, every packet that leaves this machine or enters it, at the devices in
 * `origins`, which here are the machine's edge. A GSO packet counts as the packets it stands
 * for, so that both ends of a wire count the same.
 */
#include "kernel.h"
#include "event.h"
#include "filter.h"
#include "headers.h"
#include "fragments.h"
#include "drafts.h"

/* include/linux/netdevice.h: the driver did not accept it, and it will be sent again. */
#define NETDEV_TX_BUSY 0x10

/* include/linux/skbuff.h: the segments are in the packet's list, and have different sizes. */
#define GSO_BY_FRAGS 0xffff

#define CAME 0
#define LEFT 1

/* `src/flows.rs` parses it; both assert the offsets. */
struct flow_key {
	u8 source[16];
	u8 destination[16];
	u16 source_port;	/* network byte order */
	u16 destination_port;
	u8 protocol;
	u8 tunnel;		/* enum tunnel around it */
	u8 side;		/* CAME, LEFT */
	u8 unused;
	u32 vni;
	u32 netns;
	u32 ifindex;
};
_Static_assert(sizeof(struct flow_key) == 52, "ABI of flow_key");
_Static_assert(__builtin_offsetof(struct flow_key, vni) == 40, "ABI of flow_key");

struct flow_count {
	u64 packets;
	u64 bytes;		/* of IP packets; for a tunnel, of the outer ones */
	u64 last;		/* CLOCK_MONOTONIC, ns */
};
_Static_assert(sizeof(struct flow_count) == 24, "ABI of flow_count");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct flow_count);
} flows SEC(".maps");

/* Packets of flows for which `flows` had no room. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} uncounted SEC(".maps");

static __always_inline int count(struct sk_buff *skb, struct net_device *dev, u8 side, s64 sign)
{
	u32 zero = 0, inode = 0, index = 0, segments = 1, length, headers;
	u16 gso_size = 0, gso_segs = 0, network;
	struct skb_shared_info *shared;
	struct flow_count *found;
	struct filter *filter;
	struct draft *draft;
	struct event *event;
	const u8 *at;
	struct net *net = 0;
	u64 edge, bytes;

	bpf_probe_read_kernel(&net, sizeof(net), &dev->nd_net.net);
	if (net)
		bpf_probe_read_kernel(&inode, sizeof(inode), &net->ns.inum);
	bpf_probe_read_kernel(&index, sizeof(index), &dev->ifindex);
	edge = (u64)inode << 32 | index;
	if (!bpf_map_lookup_elem(&origins, &edge))
		return 0;
	filter = bpf_map_lookup_elem(&filters, &zero);
	/* Devices send and receive with softirqs off, so no program interrupts another. */
	draft = bpf_map_lookup_elem(&drafts, &zero);
	if (!filter || !draft)
		return 0;
	event = &draft->snapshot.event;
	__builtin_memset(event, 0, sizeof(*event));
	network = skb->network_header;
	if (side == CAME)
		at = skb->data;
	else if (network && network != 0xffff)
		at = skb->head + network;
	else
		at = behind_ethernet(skb->data);
	/* ARP and other protocols have no flow. */
	if (!read_headers(number(&draft->headers, at), 0))
		return 0;
	draft->headers.is_followed = 0;
	if (is_later_fragment(&event->inner))
		draft->headers.is_followed = find_first(event);
	if (!read_back(&draft->headers.is_followed) && !is_read_wanted(0))
		return 0;
	if ((event->inner.fragment | event->outer.fragment) & htons(MORE_FRAGMENTS))
		note_first(event);
	draft->headers.frame = (u64)skb->data;
	length = skb->len - (u32)(address_back(&draft->headers.ip) -
				  address_back(&draft->headers.frame));
	headers = read_back(&draft->headers.length);
	shared = (struct skb_shared_info *)(skb->head + skb->end);
	bpf_probe_read_kernel(&gso_size, sizeof(gso_size), &shared->gso_size);
	bpf_probe_read_kernel(&gso_segs, sizeof(gso_segs), &shared->gso_segs);
	/*
	 * The number of segments follows from their size. gso_segs is not set before a guest's packet
	 * is segmented. In a retransmitted packet it may be too high, because TCP joins segments.
	 */
	if (gso_size && gso_size != GSO_BY_FRAGS && length > headers)
		segments = (length - headers + gso_size - 1) / gso_size;
	else if (gso_segs)
		segments = gso_segs;
	bytes = length + (u64)(segments - 1) * headers;

	struct flow_key key = {
		.source_port = event->inner.source_port,
		.destination_port = event->inner.destination_port,
		.protocol = event->inner.protocol,
		.tunnel = event->tunnel,
		.side = side,
		.vni = event->vni,
		.netns = inode,
		.ifindex = index,
	};
	__builtin_memcpy(key.source, event->inner.source, sizeof(key.source));
	__builtin_memcpy(key.destination, event->inner.destination, sizeof(key.destination));
	found = bpf_map_lookup_elem(&flows, &key);
	if (!found) {
		struct flow_count first = {};

		/* If another CPU was faster, its entry stays. */
		bpf_map_update_elem(&flows, &key, &first, BPF_NOEXIST);
		found = bpf_map_lookup_elem(&flows, &key);
	}
	if (!found) {
		u64 *others = bpf_map_lookup_elem(&uncounted, &zero);

		if (others)
			__sync_fetch_and_add(others, sign * segments);
		return 0;
	}
	__sync_fetch_and_add(&found->packets, sign * segments);
	__sync_fetch_and_add(&found->bytes, sign * bytes);
	found->last = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int net_dev_start_xmit(u64 *ctx)
{
	struct sk_buff *skb = untrusted(struct sk_buff, ctx[0]);

	return count(skb, skb->dev, LEFT, 1);
}

/* skb, rc, dev, len. If the driver accepted the skb, it may already be freed. */
SEC("tp_btf/net_dev_xmit")
int net_dev_xmit(u64 *ctx)
{
	struct sk_buff *skb = untrusted(struct sk_buff, ctx[0]);

	if ((u32)ctx[1] != NETDEV_TX_BUSY)
		return 0;
	return count(skb, skb->dev, LEFT, -1);
}

SEC("tp_btf/netif_receive_skb")
int netif_receive_skb(u64 *ctx)
{
	struct sk_buff *skb = untrusted(struct sk_buff, ctx[0]);

	return count(skb, skb->dev, CAME, 1);
}
