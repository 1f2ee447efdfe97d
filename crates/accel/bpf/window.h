/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * TCP windows of connections whose packets bypass conntrack, tracked as conntrack does
 * (net/netfilter/nf_conntrack_proto_tcp.c, tcp_in_window, nf_conntrack_tcp_packet). They start as a
 * copy of conntrack's. Every packet updates them: on the fast path in `fits`, on the slow path in
 * `guard` (guard.h).
 */
#ifndef OVERLANE_ACCEL_WINDOW_H
#define OVERLANE_ACCEL_WINDOW_H

#include "conntrack.h"
#include "frame.h"
#include "maps.h"

#define TCP_HLEN 20
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20
/* Beside TCP_*: the segment leaves the windows as they are. */
#define SEGMENT_FROZEN 0x100
/* Size of a copy of options, for the verifier a power of two. */
#define TCP_OPTIONS 64
/* MAXACKWINCONST. */
#define LEAST_ACK_WINDOW 66000
/* Two copies are compared after this time at the earliest, ns. */
#define COPY_NS 1000000ULL

struct tcphdr {
	u16 source;
	u16 dest;
	u32 seq;
	u32 ack;
	u8 offset;
	u8 flags;
	u16 window;
	u16 check;
	u16 urgent;
} __attribute__((packed, aligned(4)));

/* A segment, host byte order. */
struct segment {
	u32 seq;
	u32 end;
	u32 ack;
	u32 sack;	/* largest right edge of selective acknowledgements, or `ack` */
	u32 window;
	u32 flags;	/* TCP_* */
};

enum fate {
	SEGMENT_VALID,		/* in the windows, which are updated */
	SEGMENT_IGNORED,	/* conntrack accepts it, without any effect */
	SEGMENT_INVALID,	/* conntrack calls it invalid */
};

static long (*const bpf_loop)(u32 times, void *step, void *context, u64 flags) = (void *)181;

static __always_inline int before(u32 one, u32 other)
{
	return (s32)(one - other) < 0;
}

/* A search through TCP options. */
struct search {
	u8 options[TCP_OPTIONS];
	u32 length;
	u32 at;
	u32 best;
};

/* Memory for programs whose stack is full. They do not interrupt each other on a CPU. */
struct scratch {
	struct search search;
	struct tcphdr tcp;
	struct segment segment;
	struct {
		u32 source, dest;
		u16 source_port, dest_port;
	} tuple; /* struct bpf_sock_tuple for IPv4 */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

/* The context must be on the stack. */
struct searched {
	struct search *search;
};

/* Looks at one option. Returns 1 at the end. */
static long next_option(u32 turn, struct searched *searched)
{
	struct search *search = searched->search;
	u32 at, kind, size;

	if (!search)
		return 1;
	at = search->at;
	if (at >= search->length || at >= TCP_OPTIONS - 1)
		return 1;
	kind = search->options[at & (TCP_OPTIONS - 1)];
	/* TCPOPT_EOL, TCPOPT_NOP. */
	if (!kind)
		return 1;
	if (kind == 1) {
		search->at = at + 1;
		return 0;
	}
	size = search->options[(at + 1) & (TCP_OPTIONS - 1)];
	if (size < 2 || at + size > search->length)
		return 1;
	/* TCPOPT_SACK: pairs of edges. */
	if (kind == 5 && size >= 10 && !((size - 2) & 7)) {
#pragma clang loop unroll(full)
		for (u32 block = 0; block < 4; block++) {
			u32 edge = 0, from = at + 6 + 8 * block;

			if (8 * block + 10 > size)
				break;
#pragma clang loop unroll(full)
			for (u32 byte = 0; byte < 4; byte++)
				edge = edge << 8 |
				       search->options[(from + byte) & (TCP_OPTIONS - 1)];
			if (before(search->best, edge))
				search->best = edge;
		}
		return 1;
	}
	search->at = at + size;
	return 0;
}

/* Interprets a header. `length` is that of header and payload. Nonzero: malformed. */
static __always_inline int read_segment(const struct tcphdr *tcp, u32 length,
					struct segment *segment)
{
	u32 header = (tcp->offset >> 4) * 4;

	if (header < TCP_HLEN || header > length)
		return -1;
	segment->seq = htonl(tcp->seq);
	segment->ack = segment->sack = htonl(tcp->ack);
	segment->window = htons(tcp->window);
	segment->flags = tcp->flags;
	segment->end = segment->seq + length - header + !!(tcp->flags & TCP_FIN) +
		       !!(tcp->flags & TCP_SYN);
	return 0;
}

/* Combinations of flags that conntrack accepts (tcp_valid_flags), one bit for each. */
#define BIT_OF(flags) (1ULL << (flags))
#define VALID_FLAGS                                                                               \
	(BIT_OF(TCP_SYN) | BIT_OF(TCP_SYN | TCP_URG) | BIT_OF(TCP_SYN | TCP_ACK) |                \
	 BIT_OF(TCP_RST) | BIT_OF(TCP_RST | TCP_ACK) | BIT_OF(TCP_FIN | TCP_ACK) |                \
	 BIT_OF(TCP_FIN | TCP_ACK | TCP_URG) | BIT_OF(TCP_ACK) | BIT_OF(TCP_ACK | TCP_URG))

static __always_inline int are_flags_valid(u32 flags)
{
	return VALID_FLAGS >> (flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK | TCP_URG)) & 1;
}

/* Finds the largest right edge of selective acknowledgements in the first `length` bytes. */
static __always_inline void find_sack(struct search *search, u32 length, struct segment *segment)
{
	struct searched searched = { .search = search };

	search->length = length;
	search->at = 0;
	search->best = segment->ack;
	bpf_loop(40, next_option, &searched, 0);
	segment->sack = search->best;
}

/* Whether these options contain nothing but a timestamp, as in most segments. */
static __always_inline int is_stamp(const struct tcphdr *tcp, u32 first)
{
	return tcp->offset >> 4 == 8 && first == htonl(0x0101080a);
}

/* Notes a segment as conntrack does. The caller holds the lock. */
static __always_inline void note(struct connection *connection, u32 reply, u32 flags)
{
	connection->last = reply & 1;
	connection->last_kind = flags & TCP_RST	  ? LAST_RST :
				flags & TCP_SYN	  ? flags & TCP_ACK ? LAST_OTHER : LAST_SYN :
				flags & TCP_FIN	  ? LAST_FIN :
						    LAST_ACK;
}

/*
 * Checks a segment against the windows and updates them. The caller holds the lock. Unlike older
 * kernels, checks the sequence number of segments without data, too.
 */
static __always_inline u32 advance(struct connection *connection, u32 reply,
				   const struct segment *segment)
{
	struct window *sender = &connection->seen[reply & 1];
	struct window *receiver = &connection->seen[~reply & 1];
	u32 seq = segment->seq, end = segment->end, ack = segment->ack;
	u32 sack = receiver->sack ? segment->sack : ack, window = segment->window;
	u32 most = sender->maxwin > LEAST_ACK_WINDOW ? sender->maxwin : LEAST_ACK_WINDOW;
	int ack_is_late = !before(receiver->end - most - 1, sack);
	int is_late = !before(sender->end - receiver->maxwin - 1, end);

	if (!(segment->flags & TCP_ACK))
		ack = sack = receiver->end, ack_is_late = 0;
	/* Acknowledges data that was not sent. */
	if (before(receiver->end, sack))
		return SEGMENT_INVALID;
	if (before(sender->maxend, seq)) {
		u32 beyond = end - sender->maxend + 1;

		if (is_late || ack_is_late || beyond > receiver->maxwin)
			return SEGMENT_INVALID;
		/* More than the receiver has room for, but not much. */
		sender->end = end;
		return SEGMENT_IGNORED;
	}
	/* A retransmission, or an overly delayed acknowledgement. */
	if (is_late || ack_is_late)
		return SEGMENT_IGNORED;
	if (segment->flags & SEGMENT_FROZEN) {
		note(connection, reply, segment->flags);
		return SEGMENT_VALID;
	}
	window <<= sender->scale & 15;
	if (sender->maxwin < window + (sack - ack))
		sender->maxwin = window + (sack - ack);
	if (before(sender->end, end))
		sender->end = end;
	if (segment->flags & TCP_ACK && before(sender->maxack, ack))
		sender->maxack = ack;
	if (before(sender->maxend, end))
		receiver->maxwin += end - sender->maxend;
	if (before(receiver->maxend - 1, sack + window))
		receiver->maxend = sack + window + !window;
	note(connection, reply, segment->flags);
	if (connection->last_kind == LAST_ACK)
		connection->last_end = end;
	return SEGMENT_VALID;
}

/*
 * Reads the segment whose header is at offset `at` into `scratch`, for fits(). A function of its own,
 * so that the callback and the windows are not on the stack together: before Linux 6.9, each frame is
 * rounded up to 32 bytes, and all together may take 512 bytes. Nonzero: malformed.
 */
__verified_once int find_segment(struct __sk_buff *skb, u32 at)
{
	struct scratch *memory;
	u32 index = 0, options, first;

	memory = bpf_map_lookup_elem(&scratch, &index);
	if (!memory || bpf_skb_load_bytes(skb, at, &memory->tcp, TCP_HLEN) ||
	    read_segment(&memory->tcp, skb->len - at, &memory->segment))
		return -1;
	options = (memory->tcp.offset >> 4) * 4 - TCP_HLEN;
	if (!options)
		return 0;
	if (bpf_skb_load_bytes(skb, at + TCP_HLEN, &first, 4))
		return -1;
	if (is_stamp(&memory->tcp, first))
		return 0;
	options &= TCP_OPTIONS - 1;
	if (!options || bpf_skb_load_bytes(skb, at + TCP_HLEN, memory->search.options, options))
		return -1;
	find_sack(&memory->search, options, &memory->segment);
	return 0;
}

/*
 * Whether the segment in `scratch` may bypass conntrack. The connection is in the windows' state
 * CONNECTION_FAST.
 */
__verified_once int fits(const struct flow *flow)
{
	struct scratch *memory;
	struct connection *connection;
	u32 index = 0, reply, is_valid = 0;

	if (!flow)
		return 0;
	memory = bpf_map_lookup_elem(&scratch, &index);
	index = flow->connection;
	connection = bpf_map_lookup_elem(&connections, &index);
	if (!connection || !memory)
		return 0;
	reply = !!(flow->flags & FLOW_REPLY);
	bpf_spin_lock(&connection->lock);
	if (connection->serial == flow->serial && connection->state == CONNECTION_FAST) {
		if (connection->flags & CONNECTION_NUDGE)
			connection->flags &= ~CONNECTION_NUDGE;
		else
			is_valid = advance(connection, reply, &memory->segment) ==
				   SEGMENT_VALID;
	}
	bpf_spin_unlock(&connection->lock);
	return is_valid;
}

static __always_inline void copy_window(struct window *to, const struct ip_ct_tcp_state *from)
{
	to->end = from->td_end;
	to->maxend = from->td_maxend;
	to->maxwin = from->td_maxwin;
	to->maxack = from->td_maxack;
	to->scale = from->td_scale;
	to->sack = !!(from->flags & IP_CT_TCP_FLAG_SACK_PERM);
}

static __always_inline int is_same_window(const struct window *one,
					  const struct ip_ct_tcp_state *other)
{
	return one->end == other->td_end && one->maxend == other->td_maxend &&
	       one->maxwin == other->td_maxwin && one->maxack == other->td_maxack;
}

/*
 * Copies the windows of an established connection from conntrack until they are known to be equal,
 * and then follows the state of the entry. Returns whether packets may bypass it.
 */
static __always_inline int follow(struct nf_conn *ct, const struct flow *flow)
{
	const struct ip_ct_tcp_state *one = &ct->proto.tcp.seen[0], *other = &ct->proto.tcp.seen[1];
	const u32 is_established = ct->proto.tcp.state == TCP_CONNTRACK_ESTABLISHED;
	const u8 flags = one->flags & other->flags;
	u64 now = bpf_ktime_get_coarse_ns();
	struct connection *connection;
	u32 index = flow->connection, state;

	connection = bpf_map_lookup_elem(&connections, &index);
	if (!connection)
		return 0;
	bpf_spin_lock(&connection->lock);
	state = connection->serial == flow->serial ? connection->state : CONNECTION_NONE;
	if (state == CONNECTION_WANTED || state == CONNECTION_COPIED) {
		/* Another program made the entry accept anything: its windows may be outdated. */
		if (is_established && !(flags & IP_CT_TCP_FLAG_BE_LIBERAL) &&
		    flags & IP_CT_TCP_FLAG_MAXACK_SET && one->td_maxwin && other->td_maxwin &&
		    (state == CONNECTION_WANTED || now - connection->copied >= COPY_NS)) {
			/*
			 * A packet that had passed `guard`, but not conntrack, when the first copy
			 * was made is missing in that copy. Then it is not equal now.
			 */
			if (state == CONNECTION_COPIED &&
			    is_same_window(&connection->seen[0], one) &&
			    is_same_window(&connection->seen[1], other)) {
				connection->state = CONNECTION_TRACKED;
			} else {
				copy_window(&connection->seen[0], one);
				copy_window(&connection->seen[1], other);
				connection->copied = now;
				connection->state = CONNECTION_COPIED;
			}
		}
	} else if (state == CONNECTION_TRACKED && flags & IP_CT_TCP_FLAG_BE_LIBERAL) {
		connection->state = state = CONNECTION_FAST;
	} else if (state == CONNECTION_FAST && !(flags & IP_CT_TCP_FLAG_BE_LIBERAL)) {
		/*
		 * Conntrack has started anew: it tracks the windows itself. After a handshake amid
		 * the connection, a side may still be liberal (FLOW_SYNCED); then the guard remains.
		 */
		state = CONNECTION_NONE;
		if (!((one->flags | other->flags) & IP_CT_TCP_FLAG_BE_LIBERAL))
			connection->state = CONNECTION_NONE;
	}
	bpf_spin_unlock(&connection->lock);
	return is_established && state == CONNECTION_FAST;
}

#endif
