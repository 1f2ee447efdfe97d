// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Packets on their way through the kernel: each place tells user space of those that the
 * filter wants. A place reads headers where they are there, so that a packet is the same one
 * before, in and after a tunnel; nothing is remembered of it, and nothing is written to it.
 */
#include "kernel.h"
#include "event.h"
#include "filter.h"
#include "headers.h"
#include "fragments.h"
#include "expression.h"

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

struct draft {
	struct snapshot snapshot;
	struct headers headers;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct draft);
} drafts SEC(".maps");

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

/* How long later fragments are looked for after a first one was chosen by chance, in 2^20 ns. */
#define FRAGMENTS_COME 100

/* Whether a packet that was not chosen may be a fragment of one that was. */
static __always_inline int may_be_fragment(struct filter *filter)
{
	u32 since = filter->fragments;

	if (!since)
		return 0;
	if ((u32)(bpf_ktime_get_ns() >> 20) - since <= FRAGMENTS_COME)
		return 1;
	filter->fragments = 0;
	return 0;
}

/* An identification of IPv4; that of IPv6 is there in fragments only. */
#define OF_IPV4 0x80000000

/* What stays the same of a packet wherever it is. */
static __always_inline u64 identity(const struct flow *flow)
{
	u32 high = flow->sequence ^ (u32)flow->protocol << 24, id = htonl(flow->id);

	id = is_mapped(flow->source) ? id | OF_IPV4 : id & ~OF_IPV4;
	return (u64)high << 32 | id;
}

/* Whether a packet at the address of a chosen one is that one. */
static __always_inline int is_still(u64 skb, const struct flow *flow)
{
	u64 *known = bpf_map_lookup_elem(&chosen, &skb);
	u64 got = identity(flow);

	if (known && *known == got)
		return 1;
	/* IPv6, cut into fragments or put together again. */
	if (known && *known >> 32 == got >> 32 && (!(u32)*known || !(u32)got))
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

static __always_inline void tell(struct snapshot *snapshot)
{
	struct event *slot;
	u32 zero = 0, bytes = snapshot->end;
	u64 *count;

	if (bytes) {
		if (bytes > SNAPSHOT_BYTES)
			bytes = SNAPSHOT_BYTES;
		bytes += __builtin_offsetof(struct snapshot, bytes);
		if (!bpf_ringbuf_output(&events, snapshot, bytes, 0))
			return;
	} else {
		slot = bpf_ringbuf_reserve(&events, sizeof(*slot), 0);
		if (slot) {
			*slot = snapshot->event;
			bpf_ringbuf_submit(slot, 0);
			return;
		}
	}
	count = bpf_map_lookup_elem(&lost, &zero);
	if (count)
		*count += 1;
}

static __always_inline void keep_datagram(const struct snapshot *snapshot)
{
	u32 at = DATAGRAM, bytes = snapshot->end;
	struct draft *draft = bpf_map_lookup_elem(&drafts, &at);
	struct snapshot *kept;

	if (!draft)
		return;
	kept = &draft->snapshot;
	kept->event = snapshot->event;
	kept->end = snapshot->end;
	kept->begin = snapshot->begin;
	kept->length = snapshot->length;
	if (bytes > SNAPSHOT_BYTES)
		bytes = SNAPSHOT_BYTES;
	if (bytes)
		bpf_probe_read_kernel(kept->bytes, bytes, snapshot->bytes);
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

/* Reads the headers from where they may be at such a place. */
static __always_inline int headers_of(struct event *event, struct headers *headers,
				      const struct seen *seen)
{
	struct sk_buff *skb = seen->skb;
	u8 *head = skb->head, *data = skb->data;
	u16 network = skb->network_header, mac = skb->mac_header;
	const u8 *at = network && network != NOT_SET ? head + network : 0;

	switch (seen->kind) {
	case QUEUED:
	case SENT:
		/* Whoever sends has set it; a packet socket may not have. */
		if (!at)
			at = behind_ethernet(data);
		break;
	case BACKLOG:
	case GRO:
	case RECEIVED:
		at = data;
		break;
	default:
		if (at && read_headers(event, headers, at))
			return 1;
		at = mac && mac != NOT_SET ? behind_ethernet(head + mac) : 0;
	}
	return at && read_headers(event, headers, at);
}

/* Bytes of the link's header before the IP header: of Ethernet, with a VLAN tag or without, or
 * none.
 */
static __always_inline u32 link_of(struct headers *headers, const struct seen *seen)
{
	struct sk_buff *skb = seen->skb;
	u16 mac = skb->mac_header;
	u64 bytes;

	if (seen->kind == QUEUED || seen->kind == SENT)
		headers->frame = (u64)skb->data;
	else if (!mac || mac == NOT_SET)
		return 0;
	else
		headers->frame = (u64)(skb->head + mac);
	bytes = address_back(&headers->ip) - address_back(&headers->frame);
	return bytes == ETH_HLEN || bytes == ETH_HLEN + VLAN_HLEN ? bytes : 0;
}

/* Reads the headers as they are, with as much payload as is wanted and lies behind them.
 * Without an Ethernet header there is room for one, which an expression may ask for.
 */
static __always_inline void read_bytes(struct draft *draft, const struct seen *seen,
				       const struct filter *filter)
{
	struct snapshot *snapshot = &draft->snapshot;
	struct sk_buff *skb = seen->skb;
	u32 link, wanted;
	u64 from, end, data;
	u8 version;

	draft->headers.link = link_of(&draft->headers, seen);
	link = read_back(&draft->headers.link);
	wanted = link + read_back(&draft->headers.length) + filter->payload;
	from = address_back(&draft->headers.ip) - link;
	draft->headers.end = (u64)(skb->head + skb->tail);
	end = address_back(&draft->headers.end);
	draft->headers.frame = (u64)skb->data;
	data = address_back(&draft->headers.frame);
	snapshot->begin = link ? 0 : ETH_HLEN;
	snapshot->end = 0;
	snapshot->length = skb->len + (u32)(data - from);
	/* What is behind the linear part lies elsewhere. */
	if (end < from)
		return;
	if (wanted > end - from)
		wanted = end - from;
	asm volatile("" : "+r"(wanted));
	if (wanted > SNAPSHOT_BYTES - ETH_HLEN)
		wanted = SNAPSHOT_BYTES - ETH_HLEN;
	if (link) {
		if (bpf_probe_read_kernel(snapshot->bytes, wanted, (void *)from))
			return;
		snapshot->end = wanted;
		return;
	}
	if (bpf_probe_read_kernel(snapshot->bytes + ETH_HLEN, wanted, (void *)from))
		return;
	__builtin_memset(snapshot->bytes, 0, ETH_HLEN);
	version = snapshot->bytes[ETH_HLEN] >> 4;
	*(u16 *)(snapshot->bytes + 12) = version == 4 ? htons(ETH_P_IP) : htons(ETH_P_IPV6);
	snapshot->end = ETH_HLEN + wanted;
}

/* Whether the expression wants these bytes: the packet as it is, or what is in its tunnel. */
static __always_inline int is_meant(const struct draft *draft)
{
	const struct snapshot *snapshot = &draft->snapshot;
	u32 begin = snapshot->begin, length = snapshot->length + begin;
	u32 inner = read_back(&draft->headers.inner);

	if (expression(snapshot->bytes, 0, snapshot->end, length))
		return 1;
	if (!inner)
		return 0;
	inner += begin ? begin : read_back(&draft->headers.link);
	return expression(snapshot->bytes, inner, snapshot->end, length - inner);
}

static __attribute__((noinline)) int see(struct seen *seen)
{
	struct sk_buff *skb = seen->skb;
	struct skb_shared_info *shared;
	struct filter *filter;
	struct sock *owner = skb->sk;
	struct snapshot *snapshot;
	struct event *event;
	struct draft *draft;
	u32 zero = 0;
	u64 address = (u64)skb;
	u8 was, is_selective, by_fragment = 0;

	filter = bpf_map_lookup_elem(&filters, &zero);
	if (!filter)
		return 0;
	was = filter->sample > 1 && was_chosen(address);
	if (filter->sample > 1 && !was && !is_to_be_chosen(filter, seen->begins, skb, seen->dev)) {
		if (!may_be_fragment(filter)) {
			pass_by(seen->kind);
			return 0;
		}
		by_fragment = 1;
	}
	draft = bpf_map_lookup_elem(&drafts, &zero);
	if (!draft)
		return 0;
	draft->headers.is_fragment_wanted = by_fragment;
	draft->headers.is_followed = 0;
	snapshot = &draft->snapshot;
	event = &snapshot->event;
	__builtin_memset(event, 0, sizeof(*event));
	snapshot->end = 0;
	event->kind = seen->kind;
	event->skb = address;
	if (!headers_of(event, &draft->headers, seen))
		return 0;
	if (is_later_fragment(&event->inner)) {
		draft->headers.is_followed = find_first(event);
		/* By itself it says nothing of the packet that it is of. */
		if (filter->sample > 1 && !was)
			draft->headers.is_fragment_wanted = 1;
	}
	if (read_back(&draft->headers.is_fragment_wanted) &&
	    !read_back(&draft->headers.is_followed)) {
		pass_by(seen->kind);
		return 0;
	}
	is_selective = filter->patterns || filter->with_expression;
	if (filter->with_bytes || filter->with_expression)
		read_bytes(draft, seen, filter);
	/* What was wanted stays so when it is translated. */
	if (!read_back(&draft->headers.is_followed) &&
	    (!is_wanted(filter, event) ||
	     (filter->with_expression && !is_meant(draft))) &&
	    !(is_selective && was_chosen(address) && is_still(address, &event->inner)))
		return 0;
	if (!filter->with_bytes)
		snapshot->end = 0;
	if (was && !is_still(address, &event->inner)) {
		pass_by(seen->kind);
		return 0;
	}
	/* The outer header's route leads to this device: the packet began inside of the tunnel. */
	if (filter->sample > 1 && !was && seen->begins == AT_SOCKETS && event->tunnel &&
	    !read_back(&draft->headers.is_followed))
		return 0;
	if (!was && (filter->sample > 1 || is_selective)) {
		u64 same = identity(&event->inner);

		bpf_map_update_elem(&chosen, &address, &same, 0);
	}
	if ((event->inner.fragment | event->outer.fragment) & htons(MORE_FRAGMENTS)) {
		note_first(event);
		if (filter->sample > 1)
			filter->fragments = bpf_ktime_get_ns() >> 20;
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
	tell(snapshot);
	if (seen->kind == RECEIVED && event->inner.protocol == IPPROTO_UDP && !event->tunnel)
		keep_datagram(snapshot);
	if (filter->sample > 1 && seen->kind == QUEUED) {
		u64 *device = bpf_map_lookup_elem(&cutting, &zero);

		if (device)
			*device = event->gso_segs > 1 ? (u64)seen->dev : 0;
	}
	if ((filter->sample > 1 || is_selective) &&
	    (seen->kind == DROPPED || seen->kind == CONSUMED || seen->kind == READ))
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
	struct draft *kept = bpf_map_lookup_elem(&drafts, &at);

	/* What comes to a socket from here on is this one. */
	if (kept)
		kept->snapshot.event.skb = 0;
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
	struct draft *draft = bpf_map_lookup_elem(&drafts, &at);
	struct event *kept;

	if (!draft)
		return 0;
	kept = &draft->snapshot.event;
	/* Fragments have no port where their first one was not seen; raw sockets have none. */
	if (!kept->skb || !kept->inner.destination_port || htons(sk->__sk_common.skc_num) != kept->inner.destination_port ||
	    inode_of(net_of(&sk->__sk_common.skc_net)) != kept->netns)
		return 0;
	/* It was the last one to come, and is the packet that was put together. */
	if (kept->inner.fragment & htons(MORE_FRAGMENTS | FRAGMENT_OFFSET)) {
		struct sk_buff *last = sk->sk_receive_queue.prev;

		kept->inner.fragment = 0;
		kept->inner.length = 0;
		kept->len = 0;
		/* Unless its reader was faster. */
		if ((u64)last == kept->skb)
			bpf_probe_read_kernel(&kept->len, sizeof(kept->len), &last->len);
		draft->snapshot.end = 0;
	}
	kept->kind = SOCKET;
	kept->time = bpf_ktime_get_ns();
	kept->ifindex = 0;
	kept->device[0] = 0;
	tell(&draft->snapshot);
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
