/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The guard of connections whose packets bypass conntrack. Conntrack does not see all of their
 * packets, so it accepts any sequence number (IP_CT_TCP_FLAG_BE_LIBERAL). `guard` runs before
 * conntrack, for packets of every device, and drops segments that conntrack would call invalid if
 * it had seen all packets. It needs neither heartbeat nor plan.
 */
#ifndef OVERLANE_ACCEL_GUARD_H
#define OVERLANE_ACCEL_GUARD_H

#include "kernel.h"
#include "window.h"

#define NF_DROP 0
#define NF_ACCEPT 1
/* IPv6 extension headers that conntrack skips (ipv6_skip_exthdr). */
#define NEXTHDR_HOP 0
#define NEXTHDR_ROUTING 43
#define NEXTHDR_FRAGMENT 44
#define NEXTHDR_AUTH 51
#define NEXTHDR_DEST 60
#define MOST_HEADERS 8

struct nf_hook_state {
	struct net *net;
} __attribute__((preserve_access_index));

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

struct bpf_dynptr {
	u64 words[2];
} __attribute__((aligned(8)));

extern int bpf_dynptr_from_skb(struct __sk_buff *skb, u64 flags, struct bpf_dynptr *ptr__uninit)
	__attribute__((section(".ksyms")));
static long (*const bpf_dynptr_read)(void *to, u32 len, const struct bpf_dynptr *from, u32 offset,
				     u64 flags) = (void *)201;

/*
 * Reads the addresses of a TCP packet. Returns the offset of the TCP header, 0 for other packets,
 * -1 for a packet with too many headers.
 */
static __always_inline s32 read_addresses(const struct bpf_dynptr *packet, struct flow_key *key)
{
	u8 ip[IPV6_HLEN] __attribute__((aligned(8)));
	u32 at = IPV6_HLEN, next;
	u8 header[2];

	if (bpf_dynptr_read(ip, IP_HLEN, packet, 0, 0))
		return 0;
	key->protocol = IPPROTO_TCP;
	key->place = FLOW_TRACKED;
	if (ip[0] >> 4 == 4) {
		/* Fragments are reassembled before, or conntrack does not see the packet. */
		if (ip[9] != IPPROTO_TCP || *(const u16 *)(ip + 6) & htons(0x3fff))
			return 0;
		__builtin_memcpy(key->source, ip + 12, 4);
		__builtin_memcpy(key->dest, ip + 16, 4);
		return (ip[0] & 15) * 4;
	}
	if (bpf_dynptr_read(ip, IPV6_HLEN, packet, 0, 0))
		return 0;
	key->ipv6 = 1;
	__builtin_memcpy(key->source, ip + 8, 16);
	__builtin_memcpy(key->dest, ip + 24, 16);
	next = ip[6];
	for (u32 turn = 0; turn < MOST_HEADERS; turn++) {
		if (next == IPPROTO_TCP)
			return at;
		if (next != NEXTHDR_HOP && next != NEXTHDR_ROUTING && next != NEXTHDR_FRAGMENT &&
		    next != NEXTHDR_AUTH && next != NEXTHDR_DEST)
			return 0;
		if (bpf_dynptr_read(header, 2, packet, at, 0))
			return 0;
		at += next == NEXTHDR_FRAGMENT ? 8 :
		      next == NEXTHDR_AUTH     ? (header[1] + 2) * 4 :
						 (header[1] + 1) * 8;
		next = header[0];
	}
	return -1;
}

/* A sum over a part of a packet. */
#define CHUNK 64
struct summing {
	const struct bpf_dynptr *packet;
	u32 at;
	u32 end;
	u64 sum;
};

/* Adds the next chunk. Nonzero: the end, or an error. */
static long add_chunk(u32 turn, struct summing *summing)
{
	u32 words[CHUNK / 4] = {}, length = summing->end - summing->at;

	if (!length)
		return 1;
	if (length > CHUNK)
		length = CHUNK;
	if (bpf_dynptr_read(words, length, summing->packet, summing->at, 0)) {
		summing->sum = 1;
		return 1;
	}
	for (u32 word = 0; word < CHUNK / 4; word++)
		summing->sum += words[word];
	summing->at += length;
	return 0;
}

/*
 * Whether the checksum of a TCP packet is right, if conntrack verifies it (nf_checksum). Programs at
 * netfilter's hooks have no helper for it. Few checksums are computed here: most NICs verify them,
 * and those of GSO packets are verified.
 */
static __always_inline int is_sum_accepted(const struct bpf_nf_ctx *ctx,
					   const struct bpf_dynptr *packet,
					   const struct flow_key *key, u32 at)
{
	const struct sk_buff *skb = ctx->skb;
	u32 summed = ip_summed(skb), length = skb->len - at;
	struct summing summing = { .packet = packet, .at = at, .end = skb->len };

	if (summed != CHECKSUM_NONE && summed != CHECKSUM_COMPLETE)
		return 1;
	/* bpf_core_field_exists(). */
	if (__builtin_preserve_field_info(((struct net *)0)->ct.sysctl_checksum, 2) &&
	    !ctx->state->net->ct.sysctl_checksum)
		return 1;
	for (u32 word = 0; word < 4; word++) {
		summing.sum += key->source[word];
		summing.sum += key->dest[word];
	}
	summing.sum += htons(IPPROTO_TCP);
	summing.sum += htons(length >> 16);
	summing.sum += htons(length & 0xffff);
	bpf_loop(0x10000 / CHUNK + 1, add_chunk, &summing, 0);
	for (u32 turn = 0; turn < 4; turn++)
		summing.sum = (summing.sum & 0xffff) + (summing.sum >> 16);
	return summing.sum == 0xffff;
}

/* Interval between requests FLOW_SYNCED for a connection, ns. */
#define SYNCED_NS 10000000ULL

/*
 * Updates the windows by a packet on the slow path. The caller holds the lock. Returns whether to
 * drop the packet; sets `reset` if conntrack would have closed the connection, `synced` if it may begin
 * anew.
 */
static __always_inline int is_refused(struct connection *connection, u32 reply,
				      struct segment *segment, int *reset, int *synced)
{
	u32 state = connection->state, flags = segment->flags, fate;
	const int guards = state >= CONNECTION_TRACKED;
	const u32 maxack = connection->seen[~reply & 1].maxack;
	int exact, was_reset, synced_late;

	if (state < CONNECTION_COPIED)
		return 0;
	/*
	 * Conntrack begins a new entry for the side that has reset the connection (`reopen`), and
	 * calls the reply side's segments invalid. Others pass it without any effect.
	 */
	if (flags & TCP_SYN) {
		/*
		 * Conntrack notes a SYN that it ignores, and until the next segment another RST
		 * closes the entry. So it must see that segment.
		 */
		connection->flags |= CONNECTION_NUDGE;
		was_reset = connection->last_kind == LAST_RST && !connection->last;
		synced_late = connection->last_kind != LAST_SYN;
		/* Conntrack notes those that it ignores, and calls the others invalid. */
		if (!!(flags & TCP_ACK) == (reply & 1))
			note(connection, reply, flags);
		if (!(flags & TCP_ACK) && !(reply & 1)) {
			connection->flags =
				(connection->flags | CONNECTION_SYN | CONNECTION_NOTED) &
				~CONNECTION_SYNCED;
			connection->syn_end = segment->end;
		} else if (flags & TCP_ACK && reply & 1 && connection->flags & CONNECTION_SYN &&
			   segment->ack == connection->syn_end) {
			/*
			 * Conntrack does not begin anew if another segment came between the two.
			 * But it may not have seen that segment.
			 */
			if (synced_late)
				return guards;
			connection->flags |= CONNECTION_SYNCED;
			*synced = 1;
		}
		return state == CONNECTION_RESET && (reply & 1 || was_reset);
	}
	/*
	 * Conntrack resets a connection only by the exact number, or by the last segment's, or after
	 * a SYN that it has ignored.
	 */
	exact = connection->last_kind == LAST_SYN || segment->seq == maxack ||
		connection->flags & CONNECTION_FIN ||
		(connection->last_kind == LAST_ACK && connection->last == (reply & 1) &&
		 segment->seq == connection->last_end);
	/* After a SYN, conntrack takes its number for outdated. */
	if (flags & TCP_RST && before(segment->seq, maxack) && connection->last_kind != LAST_SYN)
		return guards;
	/* Conntrack does not compare the answer to a SYN that it has ignored with the windows. */
	if (flags & TCP_RST && connection->last_kind == LAST_SYN &&
	    connection->flags & CONNECTION_SYN && segment->ack == connection->syn_end) {
		note(connection, reply, flags);
		connection->flags &= ~CONNECTION_NOTED;
		connection->state = CONNECTION_RESET;
		*reset = 1;
		return 0;
	}
	/* Conntrack does not compare a RST of an ending connection with the windows. */
	if (flags & TCP_RST && (connection->flags & CONNECTION_FIN || state == CONNECTION_RESET))
		segment->flags |= SEGMENT_FROZEN;
	fate = advance(connection, reply, segment);
	/* Conntrack notes an invalid FIN or RST (nf_tcp_handle_invalid). */
	if (fate == SEGMENT_INVALID && flags & (TCP_RST | TCP_FIN) &&
	    (connection->last == (reply & 1) || connection->last_kind < LAST_FIN))
		note(connection, reply, flags);
	/*
	 * Conntrack would not ignore the flags, because it accepts any number. After a FIN any
	 * acknowledgement changes the state of the entry.
	 */
	if (guards && fate != SEGMENT_VALID &&
	    (fate == SEGMENT_INVALID || flags & (TCP_RST | TCP_FIN) ||
	     connection->flags & CONNECTION_FIN))
		return 1;
	/* Conntrack has not seen that another segment came after the SYN. */
	if (guards && flags & TCP_RST && !exact && connection->flags & CONNECTION_NOTED)
		return 1;
	connection->flags &= ~CONNECTION_NOTED;
	if (fate != SEGMENT_VALID)
		return 0;
	if (flags & TCP_FIN)
		connection->flags |= CONNECTION_FIN;
	if (flags & TCP_RST && exact) {
		connection->state = CONNECTION_RESET;
		*reset = 1;
	} else if (flags & TCP_RST) {
		/* Conntrack has shortened the entry's timeout, until the next packet. */
		connection->flags |= CONNECTION_NUDGE;
	}
	return 0;
}

/*
 * Attached to netfilter's hook PRE_ROUTING, before conntrack, in the NICs' namespace. The name is
 * known to src/programs/links.rs.
 */
SEC("netfilter")
int overlane_guard(struct bpf_nf_ctx *ctx)
{
	struct sk_buff *skb = ctx->skb;
	struct connection *connection;
	struct flow_key key = {};
	struct search search;
	struct segment segment;
	struct tracked *tracked;
	struct bpf_dynptr packet;
	struct tcphdr tcp;
	u32 index, reply, options;
	int refused, synced = 0, reset = 0;
	u64 now;
	s32 at;

	if (bpf_dynptr_from_skb((struct __sk_buff *)skb, 0, &packet))
		return NF_ACCEPT;
	at = read_addresses(&packet, &key);
	/* It might belong to any connection. */
	if (at < 0)
		return NF_DROP;
	if (!at || bpf_dynptr_read(&tcp, TCP_HLEN, &packet, at, 0))
		return NF_ACCEPT;
	key.source_port = tcp.source;
	key.dest_port = tcp.dest;
	tracked = bpf_map_lookup_elem(&tracked_flows, &key);
	/* Conntrack itself recognises malformed segments. They have no effect on the windows. */
	if (!tracked || skb->len < at || read_segment(&tcp, skb->len - at, &segment) ||
	    !are_flags_valid(tcp.flags))
		return NF_ACCEPT;
	index = tracked->connection;
	reply = tracked->reply;
	connection = bpf_map_lookup_elem(&connections, &index);
	/* Nothing is known of a connection before the copy, so the checksum does not matter. */
	if (!connection || connection->state < CONNECTION_COPIED ||
	    !is_sum_accepted(ctx, &packet, &key, at))
		return NF_ACCEPT;
	options = ((tcp.offset >> 4) * 4 - TCP_HLEN) & (TCP_OPTIONS - 1);
	if (options && !bpf_dynptr_read(search.options, options, &packet, at + TCP_HLEN, 0))
		find_sack(&search, options, &segment);
	/* Programs at netfilter's hooks have no coarse clock. */
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&connection->lock);
	refused = is_refused(connection, reply, &segment, &reset, &synced);
	/*
	 * Both ends may have begun anew. Then conntrack takes its windows from the SYN and the
	 * SYN/ACK. The thread reads whether it has.
	 */
	synced |= refused && connection->flags & CONNECTION_SYNCED;
	/*
	 * A tenant may send any number of such segments. Before CONNECTION_TRACKED the entry is not
	 * liberal yet, and `copied` is the time of the copy.
	 */
	if (synced && connection->state >= CONNECTION_TRACKED &&
	    now - connection->copied >= SYNCED_NS)
		connection->copied = now;
	else
		synced = 0;
	bpf_spin_unlock(&connection->lock);
	if (synced || reset) {
		key.place = synced ? FLOW_SYNCED : FLOW_RESET;
		bpf_ringbuf_output(&asked_flows, &key, sizeof(key), 0);
	}
	if (refused) {
		count(0, GUARD_DROP, skb->len);
		return NF_DROP;
	}
	return NF_ACCEPT;
}

#endif
