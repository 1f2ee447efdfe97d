// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Packets on their way through the kernel: each place tells user space of those that the
 * filter wants. A place reads headers where they are there, so that a packet is the same one
 * before, in and after a tunnel; nothing is remembered of it, and nothing is written to it.
 */
#include "kernel.h"
#include "event.h"
#include "filter.h"

#define VXLAN_HEADERS 8
#define VXLAN_HAS_VNI 0x08
#define ETH_P_8021Q 0x8100
/* UINT16_MAX: the header's place is not set. */
#define NOT_SET 0xffff

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} events SEC(".maps");

/* What came and did not fit into `events`, by CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

/* Chosen packets, where one in so many is wanted, and what stays the same of each: not every
 * end of a packet is seen, and its address is soon that of another.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u64);
} chosen SEC(".maps");

/* The device that this CPU gave the last chosen GSO packet to: if it is cut there, its segments
 * are sent next, and are chosen as well.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} cutting SEC(".maps");

/* Events that have not the stack's room: the one that is built, and the last that was told of a
 * datagram received on this CPU.
 */
#define DRAFT 0
#define DATAGRAM 1
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct event);
} drafts SEC(".maps");

struct ipv6hdr {
	u32 head;
	u16 length;
	u8 next;
	u8 hops;
	u8 source[16];
	u8 destination[16];
};

/* Ports and what of TCP is told: the first bytes of the transport header. */
#define TRANSPORT_BYTES 14

static __always_inline void read_transport(struct flow *flow, const u8 *bytes)
{
	__builtin_memcpy(&flow->source_port, bytes, 2);
	__builtin_memcpy(&flow->destination_port, bytes + 2, 2);
	if (flow->protocol == IPPROTO_TCP) {
		__builtin_memcpy(&flow->sequence, bytes + 4, 4);
		flow->tcp_flags = bytes[13];
	}
}

/* Whether addresses and ports could be read of the IP packet at `at`; `payload` is where that
 * of UDP begins, or 0. One read does for headers without options: a packet's memory is longer
 * than its headers.
 */
static __always_inline int read_flow(struct flow *flow, const u8 *at, const u8 **payload)
{
	u8 head[sizeof(struct ipv6hdr) + TRANSPORT_BYTES];
	const struct ipv6hdr *six = (const void *)head;
	const struct iphdr *four = (const void *)head;
	u32 length = sizeof(*six);

	*payload = 0;
	if (bpf_probe_read_kernel(head, sizeof(head), at))
		return 0;
	if (head[0] >> 4 == 4 && (head[0] & 15) >= 5) {
		length = (head[0] & 15) * 4;
		flow->source[10] = flow->source[11] = 0xff;
		__builtin_memcpy(flow->source + 12, &four->saddr, 4);
		flow->destination[10] = flow->destination[11] = 0xff;
		__builtin_memcpy(flow->destination + 12, &four->daddr, 4);
		flow->protocol = four->protocol;
		flow->id = four->id;
		flow->fragment = four->frag_off;
		flow->length = four->tot_len;
		/* Only a first fragment has ports. */
		if (four->frag_off & htons(0x1fff))
			return 1;
	} else if (head[0] >> 4 == 6) {
		__builtin_memcpy(flow->source, six->source, 16);
		__builtin_memcpy(flow->destination, six->destination, 16);
		flow->protocol = six->next;
		flow->length = six->length;
	} else {
		return 0;
	}
	if (flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP)
		return 1;
	if (length == sizeof(*four)) {
		read_transport(flow, head + sizeof(*four));
	} else if (length == sizeof(*six)) {
		read_transport(flow, head + sizeof(*six));
	} else {
		u8 rest[TRANSPORT_BYTES];

		if (bpf_probe_read_kernel(rest, sizeof(rest), at + length))
			return 1;
		read_transport(flow, rest);
	}
	if (flow->protocol == IPPROTO_UDP)
		*payload = at + length + 8;
	return 1;
}

/* Reads the headers of the packet whose IP header is at `at`: in a tunnel those of the inner
 * one, too.
 */
static __always_inline int read_headers(struct event *event, const u8 *at)
{
	const u8 *payload;
	u8 vxlan[VXLAN_HEADERS + ETH_HLEN];

	__builtin_memset(&event->inner, 0, sizeof(event->inner));
	if (!read_flow(&event->inner, at, &payload))
		return 0;
	if (!payload || !bpf_map_lookup_elem(&tunnels, &event->inner.destination_port) ||
	    bpf_probe_read_kernel(vxlan, sizeof(vxlan), payload) || !(vxlan[0] & VXLAN_HAS_VNI))
		return 1;
	event->outer = event->inner;
	event->tunnel = 1;
	event->vni = vxlan[4] << 16 | vxlan[5] << 8 | vxlan[6];
	__builtin_memset(&event->inner, 0, sizeof(event->inner));
	/* ARP and others have no addresses that a filter names. */
	read_flow(&event->inner, payload + sizeof(vxlan), &payload);
	return 1;
}

/* Where the IP header is, of a frame that begins at `frame`. */
static __always_inline const u8 *behind_ethernet(const u8 *frame)
{
	u16 type = 0;

	bpf_probe_read_kernel(&type, sizeof(type), frame + 12);
	return frame + ETH_HLEN + (type == htons(ETH_P_8021Q) ? 4 : 0);
}

static __always_inline u32 inode_of(struct net *net)
{
	u32 inode = 0;

	if (net)
		bpf_probe_read_kernel(&inode, sizeof(inode), &net->ns.inum);
	return inode;
}

static __always_inline struct net *net_of(possible_net_t *from)
{
	struct net *net = 0;

	bpf_probe_read_kernel(&net, sizeof(net), &from->net);
	return net;
}

/* In a socket's queue the kernel uses the space of skb->dev otherwise: what cannot be read is
 * not there.
 */
static __always_inline void read_device(struct event *event, struct net_device *dev)
{
	event->netns = inode_of(net_of(&dev->nd_net));
	if (!event->netns)
		return;
	bpf_probe_read_kernel(&event->ifindex, sizeof(event->ifindex), &dev->ifindex);
	bpf_probe_read_kernel_str(event->device, sizeof(event->device), &dev->name);
}

/* Whether a packet may be chosen: where it begins on this machine. */
enum begins {
	NEVER = 0,
	ALWAYS = 1,
	/* given by its socket to the device of its route */
	AT_SOCKETS = 2,
	AT_ORIGINS = 3,
	AFTER_CUTTING = 4,
};

static __always_inline int is_origin(struct net_device *dev)
{
	u64 key = (u64)inode_of(net_of(&dev->nd_net)) << 32;
	u32 index = 0;

	bpf_probe_read_kernel(&index, sizeof(index), &dev->ifindex);
	key |= index;
	return bpf_map_lookup_elem(&origins, &key) != 0;
}

/* Whether a device is the first that a socket's packet is given to: of the socket's namespace,
 * and the one that its route names. A bridge's port or what is behind a veth is not.
 */
static __always_inline int is_from_socket(struct sk_buff *skb, struct net_device *dev)
{
	struct dst_entry *route = (struct dst_entry *)(skb->_skb_refdst & SKB_DST_PTRMASK);
	struct sock *owner = skb->sk;
	struct net_device *out = dev;

	if (!owner || net_of(&owner->__sk_common.skc_net) != net_of(&dev->nd_net))
		return 0;
	if (route)
		bpf_probe_read_kernel(&out, sizeof(out), &route->dev);
	return out == dev;
}

/* Whether this packet may be one of those that were chosen. */
static __always_inline int was_chosen(u64 skb)
{
	return bpf_map_lookup_elem(&chosen, &skb) != 0;
}

/* Whether it is to be chosen now. */
static __always_inline int is_to_be_chosen(const struct filter *filter, u8 begins,
					   struct sk_buff *skb, struct net_device *dev)
{
	u32 zero = 0;

	if (begins == NEVER)
		return 0;
	if (begins == AFTER_CUTTING) {
		u64 *device = bpf_map_lookup_elem(&cutting, &zero);

		return device && *device && *device == (u64)dev;
	}
	if (bpf_get_prandom_u32() % filter->sample)
		return 0;
	if (begins == ALWAYS || !dev)
		return begins == ALWAYS;
	return begins == AT_SOCKETS ? is_from_socket(skb, dev) : is_origin(dev);
}

/* What stays the same of a packet wherever it is. */
static __always_inline u64 identity(const struct flow *flow)
{
	return (u64)flow->sequence << 32 | (u32)flow->id << 16 | flow->protocol;
}

/* Whether a packet at the address of a chosen one is that one. */
static __always_inline int is_still(u64 skb, const struct flow *flow)
{
	u64 *known = bpf_map_lookup_elem(&chosen, &skb);

	if (known && *known == identity(flow))
		return 1;
	bpf_map_delete_elem(&chosen, &skb);
	return 0;
}

/* A packet that is not followed is given to a device: what is sent there next is not cut from
 * one that is.
 */
static __always_inline void pass_by(u8 kind)
{
	u32 zero = 0;
	u64 *device = kind == QUEUED ? bpf_map_lookup_elem(&cutting, &zero) : 0;

	if (device)
		*device = 0;
}

static __always_inline void tell(const struct event *event)
{
	struct event *slot = bpf_ringbuf_reserve(&events, sizeof(*slot), 0);
	u32 zero = 0;
	u64 *count;

	if (slot) {
		*slot = *event;
		bpf_ringbuf_submit(slot, 0);
		return;
	}
	count = bpf_map_lookup_elem(&lost, &zero);
	if (count)
		*count += 1;
}

static __always_inline void keep_datagram(const struct event *event)
{
	u32 at = DATAGRAM;
	struct event *kept = bpf_map_lookup_elem(&drafts, &at);

	if (kept)
		*kept = *event;
}

struct seen {
	struct sk_buff *skb;
	struct net_device *dev;
	struct sock *sk;
	u64 location;
	u32 reason;
	u8 kind;
	/* enum begins */
	u8 begins;
};

/* Where the IP header may be at such a place. */
static __always_inline int headers_of(struct event *event, struct seen *seen)
{
	struct sk_buff *skb = seen->skb;
	u8 *head = skb->head, *data = skb->data;
	u16 network = skb->network_header, mac = skb->mac_header;

	switch (seen->kind) {
	case QUEUED:
	case SENT:
		/* Whoever sends has set it; a packet socket may not have. */
		if (network && network != NOT_SET)
			return read_headers(event, head + network);
		return read_headers(event, behind_ethernet(data));
	case BACKLOG:
	case GRO:
	case RECEIVED:
		return read_headers(event, data);
	default:
		if (network && network != NOT_SET && read_headers(event, head + network))
			return 1;
		return mac != NOT_SET && mac && read_headers(event, behind_ethernet(head + mac));
	}
}

static __attribute__((noinline)) int see(struct seen *seen)
{
	struct sk_buff *skb = seen->skb;
	struct skb_shared_info *shared;
	const struct filter *filter;
	struct sock *owner = skb->sk;
	struct event *event;
	u32 zero = 0;
	u64 address = (u64)skb;
	u8 was;

	filter = bpf_map_lookup_elem(&filters, &zero);
	if (!filter)
		return 0;
	was = filter->sample > 1 && was_chosen(address);
	if (filter->sample > 1 && !was && !is_to_be_chosen(filter, seen->begins, skb, seen->dev)) {
		pass_by(seen->kind);
		return 0;
	}
	event = bpf_map_lookup_elem(&drafts, &zero);
	if (!event)
		return 0;
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = seen->kind;
	event->skb = address;
	if (!headers_of(event, seen))
		return 0;
	/* What was wanted stays so when it is translated. */
	if (!is_wanted(filter, event) &&
	    !(filter->patterns && was_chosen(address) && is_still(address, &event->inner)))
		return 0;
	if (was && !is_still(address, &event->inner)) {
		pass_by(seen->kind);
		return 0;
	}
	/* The outer header's route leads to this device: the packet began inside of the tunnel. */
	if (filter->sample > 1 && !was && seen->begins == AT_SOCKETS && event->tunnel)
		return 0;
	if (!was && (filter->sample > 1 || filter->patterns)) {
		u64 same = identity(&event->inner);

		bpf_map_update_elem(&chosen, &address, &same, 0);
	}
	if (seen->sk)
		event->netns = inode_of(net_of(&seen->sk->__sk_common.skc_net));
	if (!event->netns && seen->dev)
		read_device(event, seen->dev);
	if (!event->netns && owner)
		event->netns = inode_of(net_of(&owner->__sk_common.skc_net));
	if (!event->netns) {
		struct dst_entry *route =
			(struct dst_entry *)(skb->_skb_refdst & SKB_DST_PTRMASK);
		struct net_device *out = 0;

		if (route)
			bpf_probe_read_kernel(&out, sizeof(out), &route->dev);
		if (out)
			event->netns = inode_of(net_of(&out->nd_net));
	}
	if (filter->with_spaces && !bpf_map_lookup_elem(&spaces, &event->netns))
		return 0;
	if (filter->with_device && !is_device(filter->device, event->device))
		return 0;
	event->time = bpf_ktime_get_ns();
	event->location = seen->location;
	event->reason = seen->reason;
	event->len = skb->len;
	shared = (struct skb_shared_info *)(skb->head + skb->end);
	bpf_probe_read_kernel(&event->gso_size, sizeof(event->gso_size), &shared->gso_size);
	bpf_probe_read_kernel(&event->gso_segs, sizeof(event->gso_segs), &shared->gso_segs);
	event->checksum = bits_of(skb, ip_summed);
	event->conntrack = skb->_nfct & ~NFCT_INFOMASK ? (skb->_nfct & NFCT_INFOMASK) + 1 : 0;
	event->mark = skb->mark;
	event->cpu = bpf_get_smp_processor_id();
	if (seen->kind == READ) {
		event->pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(event->comm, sizeof(event->comm));
	}
	tell(event);
	if (seen->kind == RECEIVED && event->inner.protocol == IPPROTO_UDP && !event->tunnel)
		keep_datagram(event);
	if (filter->sample > 1 && seen->kind == QUEUED) {
		u64 *device = bpf_map_lookup_elem(&cutting, &zero);

		if (device)
			*device = event->gso_segs > 1 ? (u64)seen->dev : 0;
	}
	if ((filter->sample > 1 || filter->patterns) && (seen->kind == DROPPED || seen->kind == CONSUMED ||
				   seen->kind == READ))
		bpf_map_delete_elem(&chosen, &address);
	return 1;
}

static __always_inline int at_device(u64 *ctx, u8 kind, u8 begins)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct seen seen = { .skb = skb, .dev = skb->dev, .kind = kind, .begins = begins };

	see(&seen);
	return 0;
}

SEC("tp_btf/net_dev_queue")
int net_dev_queue(u64 *ctx)
{
	return at_device(ctx, QUEUED, AT_SOCKETS);
}

SEC("tp_btf/net_dev_start_xmit")
int net_dev_start_xmit(u64 *ctx)
{
	return at_device(ctx, SENT, AFTER_CUTTING);
}

SEC("tp_btf/netif_rx")
int netif_rx(u64 *ctx)
{
	return at_device(ctx, BACKLOG, AT_ORIGINS);
}

SEC("tp_btf/napi_gro_receive_entry")
int napi_gro_receive_entry(u64 *ctx)
{
	return at_device(ctx, GRO, AT_ORIGINS);
}

SEC("tp_btf/netif_receive_skb")
int netif_receive_skb(u64 *ctx)
{
	u32 at = DATAGRAM;
	struct event *kept = bpf_map_lookup_elem(&drafts, &at);

	/* What comes to a socket from here on is this one. */
	if (kept)
		kept->skb = 0;
	return at_device(ctx, RECEIVED, AT_ORIGINS);
}

/* skb, len */
SEC("tp_btf/skb_copy_datagram_iovec")
int skb_copy_datagram_iovec(u64 *ctx)
{
	struct seen seen = { .skb = (struct sk_buff *)ctx[0], .kind = READ };

	see(&seen);
	return 0;
}

/* sk, skb */
SEC("tp_btf/tcp_probe")
int tcp_probe(u64 *ctx)
{
	struct seen seen = {
		.skb = (struct sk_buff *)ctx[1],
		.sk = (struct sock *)ctx[0],
		.kind = SOCKET,
	};

	see(&seen);
	return 0;
}

/* sk: the datagram that this CPU has just received is in this socket, if its port is. The
 * packet itself may be gone already.
 */
SEC("tp_btf/sk_data_ready")
int sk_data_ready(u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	u32 at = DATAGRAM;
	struct event *kept = bpf_map_lookup_elem(&drafts, &at);

	if (!kept || !kept->skb ||
	    htons(sk->__sk_common.skc_num) != kept->inner.destination_port ||
	    inode_of(net_of(&sk->__sk_common.skc_net)) != kept->netns)
		return 0;
	kept->kind = SOCKET;
	kept->time = bpf_ktime_get_ns();
	kept->ifindex = 0;
	kept->device[0] = 0;
	tell(kept);
	bpf_map_delete_elem(&chosen, &kept->skb);
	kept->skb = 0;
	return 0;
}

static __always_inline int drop(u64 *ctx, u32 reason, struct sock *receiver)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct seen seen = {
		.skb = skb,
		.dev = skb->dev,
		.sk = receiver,
		.location = ctx[1],
		.reason = reason,
		.kind = DROPPED,
		.begins = ALWAYS,
	};

	see(&seen);
	return 0;
}

/* skb, location, reason, receiving socket: since Linux 6.11. */
SEC("tp_btf/kfree_skb")
int kfree_skb_of_socket(u64 *ctx)
{
	return drop(ctx, (u32)ctx[2], (struct sock *)ctx[3]);
}

/* skb, location, reason: since Linux 5.17. */
SEC("tp_btf/kfree_skb")
int kfree_skb_reason(u64 *ctx)
{
	return drop(ctx, (u32)ctx[2], 0);
}

/* skb, location. */
SEC("tp_btf/kfree_skb")
int kfree_skb(u64 *ctx)
{
	return drop(ctx, 0, 0);
}

SEC("tp_btf/consume_skb")
int consume_skb(u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct seen seen = { .skb = skb, .dev = skb->dev, .kind = CONSUMED };

	see(&seen);
	return 0;
}
