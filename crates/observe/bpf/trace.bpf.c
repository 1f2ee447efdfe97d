// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Traces packets through the kernel: at each place, packets that match the filter are reported
 * to user space. Each place parses the headers again, so that a packet is recognised before, in
 * and after a tunnel. Nothing is stored in a packet or written to it.
 */
#include "kernel.h"
#include "event.h"
#include "filter.h"
#include "headers.h"
#include "fragments.h"
#include "followed.h"
#include "translated.h"
#include "sampling_start.h"
#include "expression.h"
#include "suppressed.h"
#include "drafts.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} events SEC(".maps");

/* Events that did not fit into `events`, by CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

/* Cost of the programs, by CPU. From it, user space decides how often to open windows. */
struct cost {
	u64 runs;	/* number of program runs */
	u64 timed;	/* number of runs that were timed */
	u64 ns;		/* time of the timed runs */
};
_Static_assert(sizeof(struct cost) == 24, "ABI of cost");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cost);
} costs SEC(".maps");

/*
 * One run in this many is timed. It is prime, because a packet causes some twenty runs, always
 * in the same order.
 */
#define TIMED 31

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

/*
 * In a socket's queue, the kernel uses the space of skb->dev for other data. If it cannot be
 * read, there is no device.
 */
static __always_inline void read_device(struct event *event, struct net_device *dev)
{
	event->netns = inode_of(net_of(&dev->nd_net));
	if (!event->netns)
		return;
	bpf_probe_read_kernel(&event->ifindex, sizeof(event->ifindex), &dev->ifindex);
	bpf_probe_read_kernel_str(event->device, sizeof(event->device), &dev->name);
}

/*
 * An Ethernet header with or without a VLAN tag, where the kernel has noted it. A VXLAN device has
 * pulled the inner one when it looks up the sender's entry (vxlan_set_mac()), while the network
 * header is still the outer one.
 */
static __always_inline void read_macs(struct event *event, struct sk_buff *skb)
{
	u16 network = skb->network_header, mac = skb->mac_header;
	u16 bytes = network - mac, pulled = (u16)(skb->data - skb->head) - mac;

	if (mac == NOT_SET)
		return;
	if (bytes == ETH_HLEN || bytes == ETH_HLEN + VLAN_HLEN || pulled == ETH_HLEN)
		bpf_probe_read_kernel(event->macs, sizeof(event->macs), skb->head + mac);
}

static __always_inline void count_lost(void)
{
	u32 zero = 0;
	u64 *count = bpf_map_lookup_elem(&lost, &zero);

	if (count)
		*count += 1;
}

static __always_inline void tell(const struct filter *filter, struct snapshot *snapshot)
{
	struct event *slot;
	u32 bytes = snapshot->end;
	/*
	 * In these modes user space polls, because waking it costs the process whose packet is
	 * seen.
	 */
	u64 flags = filter->in_windows || filter->drops_only ? BPF_RB_NO_WAKEUP : 0;

	if (bytes) {
		if (bytes > SNAPSHOT_BYTES)
			bytes = SNAPSHOT_BYTES;
		bytes += __builtin_offsetof(struct snapshot, bytes);
		if (!bpf_ringbuf_output(&events, snapshot, bytes, flags))
			return;
	} else {
		slot = bpf_ringbuf_reserve(&events, sizeof(*slot), 0);
		if (slot) {
			*slot = snapshot->event;
			bpf_ringbuf_submit(slot, flags);
			return;
		}
	}
	count_lost();
}

/*
 * Counts a drop that cannot be reported, and emits no event. It is a separate function because
 * the verifier gives nested calls 512 bytes of stack in total, at least up to Linux 6.12.
 */
static __attribute__((noinline)) int only_count(const struct seen *seen)
{
	if (!seen)
		return 0;
	/* Unexpected: the map has room for more places than the kernel has. */
	if (!is_counted(seen->location, seen->reason))
		count_lost();
	return 0;
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

/* Parses the headers, from the position where they are at this place. */
static __always_inline int headers_of(struct headers *headers, const struct seen *seen)
{
	struct sk_buff *skb = seen->skb;
	u8 *head = skb->head, *data = skb->data;
	u16 network = skb->network_header, mac = skb->mac_header;
	const u8 *at = network && network != NOT_SET ? head + network : 0;

	switch (seen->kind) {
	case QUEUED:
	case SENT:
		/* Senders set the network header, except packet sockets. */
		if (!at)
			at = behind_ethernet(data);
		break;
	case BACKLOG:
	case GRO:
	case RECEIVED:
		at = data;
		break;
	default:
		if (at && read_headers(number(headers, at), seen->draft->at))
			return 1;
		at = mac && mac != NOT_SET ? behind_ethernet(head + mac) : 0;
	}
	return at && read_headers(number(headers, at), seen->draft->at);
}

/*
 * Returns the length of the link header before the IP header: Ethernet with or without a VLAN
 * tag, or none.
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

/*
 * Copies the headers, and as much payload as is wanted and follows them in memory. If there is
 * no Ethernet header, room is left for one, because an expression may refer to it.
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
	/* Data after the linear part is elsewhere and is not copied. */
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

/*
 * Whether these bytes match the expression: the packet itself, or the inner packet of its
 * tunnel.
 */
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

/* The packet was seen for the last time. Its address will be reused for another packet. */
static __always_inline void forget_at_end(const struct filter *filter, const struct seen *seen)
{
	if (!filter->drops_only && (filter->by_chance || wants_some(filter)) &&
	    (seen->kind == DROPPED || seen->kind == CONSUMED || seen->kind == READ))
		forget((u64)seen->skb);
}

static __attribute__((noinline)) int see(struct seen *seen)
{
	struct sk_buff *skb = seen->skb;
	struct skb_shared_info *shared;
	const struct filter *filter = seen->filter;
	struct sock *owner = skb->sk;
	struct snapshot *snapshot;
	struct draft *draft = seen->draft;
	struct event *event;
	u32 zero = 0;
	u64 address = (u64)skb;
	u8 was, is_selective;

	/* Always set; the check is for the verifier. */
	if (!draft)
		return 0;
	was = filter->by_chance && was_chosen(filter, address);
	draft->headers.is_fragment_wanted = seen->by_fragment;
	draft->headers.is_followed = 0;
	snapshot = &draft->snapshot;
	event = &snapshot->event;
	__builtin_memset(event, 0, sizeof(*event));
	snapshot->end = 0;
	event->kind = seen->kind;
	event->skb = address;
	if (!headers_of(&draft->headers, seen))
		return 0;
	if (is_later_fragment(&event->inner)) {
		draft->headers.is_followed = find_first(event);
		/* Without its first fragment, it does not show to which packet it belongs. */
		if (filter->by_chance && !was)
			draft->headers.is_fragment_wanted = 1;
	}
	if (read_back(&draft->headers.is_fragment_wanted) &&
	    !read_back(&draft->headers.is_followed)) {
		pass_by(seen->kind);
		return 0;
	}
	is_selective = wants_some(filter);
	if (filter->with_bytes || filter->with_expression)
		read_bytes(draft, seen, filter);
	if (!read_back(&draft->headers.is_followed) &&
	    (!is_read_wanted(draft->at) ||
	     (filter->with_expression && !is_meant(draft))) &&
	    !(is_by_flows(filter) && is_translated(&event->inner))) {
		/* A packet that matched stays wanted after its addresses were translated. */
		if (!is_selective || !was_chosen(filter, address) ||
		    !is_still(address, &event->inner))
			return 0;
		if (is_by_flows(filter) && is_of_translated(skb))
			note_translated(&event->inner);
	}
	if (!filter->with_bytes)
		snapshot->end = 0;
	if (was && !is_still(address, &event->inner)) {
		pass_by(seen->kind);
		return 0;
	}
	/*
	 * The outer header's route leads to this device, so the packet began inside the tunnel
	 * and was already seen.
	 */
	if (filter->by_chance && !was && seen->sampling_start == AT_SOCKETS && event->tunnel &&
	    !read_back(&draft->headers.is_followed))
		return 0;
	/*
	 * A drop is the only event of its packet in this mode, so there is nothing to follow.
	 */
	if (!was && !filter->drops_only && (filter->by_chance || is_selective))
		choose(filter, skb, identity(&event->inner));
	if ((event->inner.fragment | event->outer.fragment) & htons(MORE_FRAGMENTS)) {
		note_first(event);
		if (filter->by_chance) {
			fragments_window = filter->window;
			fragments_since = now();
		}
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
	if ((filter->with_spaces && !bpf_map_lookup_elem(&spaces, &event->netns)) ||
	    (filter->with_device && !is_device(filter->device, event->device))) {
		forget_at_end(filter, seen);
		return 0;
	}
	if (filter->drops_only) {
		if (!may_report()) {
			only_count(seen);
			return 0;
		}
		/* Each CPU may exceed the limit by one; the ring has room for that. */
		__sync_fetch_and_add(&reported, 1);
	}
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
	if (seen->kind == DROPPED)
		read_macs(event, skb);
	if (seen->kind == READ) {
		event->pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(event->comm, sizeof(event->comm));
	}
	tell(filter, snapshot);
	if (seen->kind == RECEIVED && event->inner.protocol == IPPROTO_UDP && !event->tunnel)
		keep_datagram(snapshot);
	if (event->gso_segs > 1 && seen->kind == QUEUED && is_selective)
		queued_to_be_cut = now();
	if (filter->by_chance && seen->kind == QUEUED) {
		struct cut *cut = bpf_map_lookup_elem(&cutting, &zero);

		if (cut) {
			cut->device = event->gso_segs > 1 ? (u64)seen->dev : 0;
			cut->window = filter->window;
		}
	}
	forget_at_end(filter, seen);
	return 1;
}

/*
 * Whether a drop can be counted without parsing its headers: the limit is reached, and the drop
 * matches regardless of them.
 */
static __attribute__((noinline)) int is_for_counting(const struct filter *filter,
						      const struct seen *seen)
{
	u16 protocol = 0;

	if (!filter || !seen || !filter->drops_only || filter->by_chance || wants_some(filter) ||
	    filter->with_spaces || filter->with_device || may_report())
		return 0;
	bpf_probe_read_kernel(&protocol, sizeof(protocol), &seen->skb->protocol);
	/* ARP has no IP headers, and is not reported either. */
	return protocol != htons(ETH_P_ARP);
}

/* Common body of all programs. */
static __always_inline void look(struct seen *seen)
{
	struct cost *cost = 0;
	struct filter *filter;
	u64 begun = 0;
	u32 zero = 0;

	filter = bpf_map_lookup_elem(&filters, &zero);
	if (!filter)
		return;
	if (filter->in_windows) {
		cost = bpf_map_lookup_elem(&costs, &zero);
		if (cost && ++cost->runs % TIMED == 0)
			begun = bpf_ktime_get_ns();
	}
	seen->filter = filter;
	if (is_for_counting(filter, seen))
		only_count(seen);
	else if (is_looked_at(filter, seen)) {
		seen->draft = take_draft();
		if (seen->draft) {
			see(seen);
			release_draft(seen->draft);
		} else {
			count_lost();
		}
	}
	if (cost && begun) {
		cost->ns += bpf_ktime_get_ns() - begun;
		cost->timed++;
	}
}

static __always_inline int at_device(u64 *ctx, u8 kind, u8 sampling_start)
{
	struct sk_buff *skb = untrusted(struct sk_buff, ctx[0]);
	struct seen seen = { .skb = skb, .dev = skb->dev, .kind = kind, .sampling_start = sampling_start };

	look(&seen);
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

	/* A datagram that reaches a socket from here on is this one. */
	if (kept)
		kept->snapshot.event.skb = 0;
	return at_device(ctx, RECEIVED, AT_ORIGINS);
}

/* skb, len */
SEC("tp_btf/skb_copy_datagram_iovec")
int skb_copy_datagram_iovec(u64 *ctx)
{
	struct seen seen = { .skb = untrusted(struct sk_buff, ctx[0]), .kind = READ };

	look(&seen);
	return 0;
}

/* sk, skb */
SEC("tp_btf/tcp_probe")
int tcp_probe(u64 *ctx)
{
	struct seen seen = {
		.skb = untrusted(struct sk_buff, ctx[1]),
		.sk = untrusted(struct sock, ctx[0]),
		.kind = SOCKET,
	};

	look(&seen);
	return 0;
}

/*
 * Records that nothing more of a datagram in its socket has to be seen. If a filter selected
 * it, the mark stays, because the kernel may still report the free.
 */
static __always_inline void spend(const struct filter *filter, u64 skb)
{
	struct followed *known = bpf_map_lookup_elem(&chosen, &skb);

	if (filter->by_chance)
		forget(skb);
	else if (known)
		known->same = SPENT;
}

/*
 * sk: the datagram that this CPU has just received is in this socket, if its port matches. The
 * packet itself may already be freed.
 */
SEC("tp_btf/sk_data_ready")
int sk_data_ready(u64 *ctx)
{
	struct sock *sk = untrusted(struct sock, ctx[0]);
	u32 at = DATAGRAM, zero = 0;
	struct draft *draft = bpf_map_lookup_elem(&drafts, &at);
	const struct filter *filter;
	struct event *kept;

	if (!draft)
		return 0;
	kept = &draft->snapshot.event;
	/* Fragments have no port if their first one was not seen; raw sockets have none. */
	if (!kept->skb || !kept->inner.destination_port || htons(sk->__sk_common.skc_num) != kept->inner.destination_port ||
	    inode_of(net_of(&sk->__sk_common.skc_net)) != kept->netns)
		return 0;
	filter = bpf_map_lookup_elem(&filters, &zero);
	if (!filter)
		return 0;
	/* This was the last fragment to arrive; its skb is now the reassembled packet. */
	if (kept->inner.fragment & htons(MORE_FRAGMENTS | FRAGMENT_OFFSET)) {
		struct sk_buff *last = sk->sk_receive_queue.prev;

		kept->inner.fragment = 0;
		kept->inner.length = 0;
		kept->len = 0;
		/* Unless the reader was faster and has freed it. */
		if ((u64)last == kept->skb)
			bpf_probe_read_kernel(&kept->len, sizeof(kept->len), &last->len);
		draft->snapshot.end = 0;
	}
	kept->kind = SOCKET;
	kept->time = bpf_ktime_get_ns();
	kept->ifindex = 0;
	kept->device[0] = 0;
	tell(filter, &draft->snapshot);
	spend(filter, kept->skb);
	kept->skb = 0;
	return 0;
}

static __always_inline int drop(u64 *ctx, u32 reason, struct sock *receiver)
{
	struct sk_buff *skb = untrusted(struct sk_buff, ctx[0]);
	struct seen seen = {
		.skb = skb,
		.dev = skb->dev,
		.sk = receiver,
		.location = ctx[1],
		.reason = reason,
		.kind = DROPPED,
		.sampling_start = ALWAYS,
	};

	look(&seen);
	return 0;
}

/* skb, location, reason, receiving socket: since Linux 6.11. */
SEC("tp_btf/kfree_skb")
int kfree_skb_of_socket(u64 *ctx)
{
	return drop(ctx, (u32)ctx[2], untrusted(struct sock, ctx[3]));
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

/* Measures the cost of the kernel's call of a program: `src/call_cost.rs`. */
SEC("tp_btf/skb_copy_datagram_iovec")
int empty(u64 *ctx)
{
	return 0;
}

SEC("tp_btf/consume_skb")
int consume_skb(u64 *ctx)
{
	struct sk_buff *skb = untrusted(struct sk_buff, ctx[0]);
	struct seen seen = { .skb = skb, .dev = skb->dev, .kind = CONSUMED };

	look(&seen);
	return 0;
}
