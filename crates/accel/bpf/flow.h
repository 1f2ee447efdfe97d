/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Flows through packet filters. The daemon evaluates the rules and stores verdicts for the
 * directions of connections whose packets they accept. The programs look up the verdict, and the
 * conntrack entry for each packet. Connections begin and end on the slow path.
 */
#ifndef OVERLANE_ACCEL_FLOW_H
#define OVERLANE_ACCEL_FLOW_H

#include "conntrack.h"
#include "frame.h"
#include "maps.h"
#include "window.h"

/*
 * Record 1 in N segments at random, so that most short connections, which get no verdict, create no
 * entry. Record every datagram, because replies may be rare.
 */
#define FLOW_NOTED 16
/*
 * Number of recorded segments or datagrams that make a flow established enough for a verdict. Short
 * connections rarely have four recorded segments, and each request would wake the daemon in vain.
 */
#define FLOW_LASTS 4
#define FLOW_LASTS_DATAGRAMS 8
/*
 * After a pause of this length between two recorded packets, treat it as a new flow, ns: ports are
 * reused.
 */
#define FLOW_PAUSE_NS 1000000000ULL
/* The packet starts a connection. */
#define FLOW_STARTS -2
/* Interval between slow-path packets of a FLOW_YOUNG, ns. */
#define FLOW_YOUNG_NS 500000000ULL
#define TCP_FIN_SYN_RST_ACK 0x17
/* Offsets in the transport header. */
#define TCP_FLAGS 13
#define TCP_CHECK 16
#define UDP_CHECK 6
#define UDP_HLEN 8

/* include/uapi/linux/bpf.h. */
#define BPF_ANY 0
#define BPF_F_PSEUDO_HDR (1ULL << 4)
#define BPF_F_MARK_MANGLED_0 (1ULL << 5)

static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 u64 flags) = (void *)2;
static u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static long (*const bpf_l4_csum_replace)(struct __sk_buff *skb, u32 offset, u64 from, u64 to,
					 u64 flags) = (void *)11;
static s64 (*const bpf_csum_diff)(const void *from, u32 from_size, const void *to, u32 to_size,
				  u32 seed) = (void *)28;
static u64 (*const bpf_jiffies64)(void) = (void *)118;
static long (*const bpf_ringbuf_output)(void *ringbuf, const void *data, u64 size,
					u64 flags) = (void *)130;

static __always_inline u32 header_length(const struct flow_key *key)
{
	return key->ipv6 ? IPV6_HLEN : IP_HLEN;
}

/*
 * Reads the ports from the transport header at `at`. Nonzero: no ports, a wrong length, or the
 * start or end of a connection. FLOW_STARTS: a start, with the key filled in.
 */
static __always_inline int ports_of(struct __sk_buff *skb, u32 at, struct flow_key *key)
{
	struct {
		u32 ports;
		u8 rest[TCP_FLAGS - 4];
		u8 flags;
		u16 unused;
	} __attribute__((aligned(8))) header;
	struct {
		u32 ports;
		u16 length;
		u16 check;
	} __attribute__((aligned(8))) datagram;
	u32 flags, length;

	if (key->protocol == IPPROTO_TCP) {
		if (load(skb, at, &header, TCP_FLAGS + 1))
			return -1;
		__builtin_memcpy(&key->source_port, &header.ports, 4);
		flags = header.flags & TCP_FIN_SYN_RST_ACK;
		return flags == TCP_ACK ? 0 : flags == TCP_SYN ? FLOW_STARTS : -1;
	}
	if (key->protocol != IPPROTO_UDP || load(skb, at, &datagram, UDP_HLEN))
		return -1;
	__builtin_memcpy(&key->source_port, &datagram.ports, 4);
	/* Conntrack calls other lengths invalid. */
	length = htons(datagram.length);
	return length < UDP_HLEN || length > skb->len - at ? -1 : 0;
}

/*
 * Whether the kernel would not have to verify the checksum of the transport header at `at`, which
 * conntrack requires of packets that it calls valid. Behind a tunnel's headers, a checksum is
 * verified only if two are.
 */
static __always_inline int is_verified(struct __sk_buff *skb, u32 at, u32 protocol,
				       const int is_tunnel)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	u32 summed = ip_summed(kernel);
	u16 check = 1;

	if (summed == CHECKSUM_PARTIAL)
		return !is_tunnel || (u16)(kernel->csum_start - kernel->mac_header) == at;
	if (summed == CHECKSUM_UNNECESSARY && (!is_tunnel || READ_BITS(kernel, csum_level)))
		return 1;
	/* A datagram may have no checksum. */
	return protocol == IPPROTO_UDP && !load(skb, at + UDP_CHECK, &check, sizeof(check)) &&
	       !check;
}

/*
 * Fills in the key of a packet's direction at `device`. The IP header is at `start`. Nonzero:
 * conntrack must see this packet itself, because it is a start, an end, a fragment, or has options.
 */
static __always_inline int flow_of(struct __sk_buff *skb, u32 start, u16 proto, const u8 *ip,
				   u32 device, struct flow_key *key)
{
	u32 protocol4 = ip[9], protocol6 = ip[6];

	__builtin_memset(key, 0, sizeof(*key));
	/* Keep clang from merging the loads, see segment_headers(). */
	asm volatile("" : "+r"(protocol4), "+r"(protocol6));
	key->netns = netns_of(skb);
	key->device = device;
	if (proto == htons(ETH_P_IP)) {
		/* Fragment: MF flag or an offset. */
		if (ip[0] != 0x45 || *(const u16 *)(ip + 6) & htons(0x3fff))
			return -1;
		key->protocol = protocol4;
		__builtin_memcpy(key->source, ip + 12, 4);
		__builtin_memcpy(key->dest, ip + 16, 4);
		return ports_of(skb, start + IP_HLEN, key);
	}
	key->ipv6 = 1;
	key->protocol = protocol6;
	__builtin_memcpy(key->source, ip + 8, 16);
	__builtin_memcpy(key->dest, ip + 24, 16);
	return ports_of(skb, start + IPV6_HLEN, key);
}

static __always_inline int is_noted(u32 protocol)
{
	return protocol != IPPROTO_TCP || bpf_get_prandom_u32() % FLOW_NOTED == 0;
}

/* Records a packet at a place on the slow path. */
static __always_inline struct seen *see(struct flow_key *key, u32 place, const struct state *live,
					u64 now)
{
	struct seen *seen, first = { .verdict = live->verdicts, .packets = 1, .noted = now };

	key->place = place;
	seen = bpf_map_lookup_elem(&seen_flows, key);
	if (seen && seen->verdict == live->verdicts) {
		if (now > seen->noted && now - seen->noted > FLOW_PAUSE_NS)
			seen->packets = 0;
		seen->packets++;
		seen->noted = now;
	} else {
		bpf_map_update_elem(&seen_flows, key, &first, BPF_ANY);
		seen = 0;
	}
	return seen;
}

/*
 * TCP flows both ways, so only the tenant's side requests a verdict. For datagrams each side does.
 */
static __always_inline int asks_at_tunnel(const struct flow_key *key)
{
	return key->protocol == IPPROTO_UDP;
}

/*
 * Handles an input packet without a verdict on the slow path. Requests a verdict once the flow is
 * established.
 */
static __always_inline void entered(struct flow_key *key, const struct state *live, u64 now, int ask)
{
	u32 lasts = key->protocol == IPPROTO_TCP ? FLOW_LASTS : FLOW_LASTS_DATAGRAMS;
	struct seen *seen;

	/* No verdicts are given. */
	if (!live->verdicts || !is_noted(key->protocol))
		return;
	seen = see(key, FLOW_ENTERED, live, now);
	if (!ask || !seen || seen->packets < lasts ||
	    (now > seen->asked ? now - seen->asked : 0) < FLOW_ASK_MS * 1000000ULL)
		return;
	seen->asked = now;
	bpf_ringbuf_output(&asked_flows, key, sizeof(*key), 0);
}

/*
 * Whether a packet of this flow must take the slow path now, as for entries: the kernel counts it,
 * and conntrack renews the entry's timeout.
 */
static __always_inline int flow_due(struct flow *flow, u64 now, const struct state *live)
{
	u64 interval = live->refresh;

	if (!flow)
		return 0;
	/* Conntrack sets the assured bit on a slow-path packet. */
	if (flow->flags & FLOW_YOUNG && interval > FLOW_YOUNG_NS)
		interval = FLOW_YOUNG_NS;
	if (!due(&flow->refreshed, now, interval))
		return 0;
	flow->timeout = 0;
	return 1;
}

/* Returns a flow's bit in the bitmap `judged`, as src/programs/judged.rs computes it. */
static __always_inline u32 judged_bit(const struct flow_key *key)
{
	u64 bits = key->source[0] | (u64)key->dest[0] << 32;

	if (key->ipv6) {
		bits ^= key->source[2] | (u64)key->dest[2] << 32;
		bits = bits * 0x9e3779b97f4a7c15ULL ^ key->source[3] ^ (u64)key->dest[3] << 32;
	}
	bits *= 0x9e3779b97f4a7c15ULL;
	bits ^= bits >> 32;
	bits ^= key->source_port | (u64)key->dest_port << 16 | (u64)key->device << 32;
	bits *= 0xd6e8feb86659fd93ULL;
	return bits >> (64 - JUDGED_BITS);
}

/* Returns the valid verdict on a flow. Rules were evaluated for packets without a mark. */
static __always_inline struct flow *verdict_of(const struct __sk_buff *skb, struct flow_key *key,
					       const struct state *live)
{
	u32 bit = judged_bit(key), word = bit >> 6;
	const u64 *bits = bpf_map_lookup_elem(&judged, &word);
	struct flow *flow;

	if (skb->mark || !bits || !(*bits >> (bit & 63) & 1))
		return 0;
	key->place = FLOW_VERDICT;
	flow = bpf_map_lookup_elem(&flows, key);
	return flow && live->verdicts && flow->verdict == live->verdicts ? flow : 0;
}

static __always_inline int is_address(const u32 *one, const u32 *other, u32 six)
{
	return one[0] == other[0] &&
	       (!six || (one[1] == other[1] && one[2] == other[2] && one[3] == other[3]));
}

/* Whether the tuple of the other direction is the reverse of the packet as it leaves. */
static __always_inline int is_reverse(const struct nf_conntrack_tuple *other,
				      const struct flow *flow, u32 six)
{
	u32 source[4], dest[4];

	source[0] = other->src.u3.all[0];
	dest[0] = other->dst.u3.all[0];
	if (six) {
		source[1] = other->src.u3.all[1];
		source[2] = other->src.u3.all[2];
		source[3] = other->src.u3.all[3];
		dest[1] = other->dst.u3.all[1];
		dest[2] = other->dst.u3.all[2];
		dest[3] = other->dst.u3.all[3];
	}
	return is_address(source, flow->dest, six) && is_address(dest, flow->source, six) &&
	       other->src.u.all == flow->dest_port && other->dst.u.all == flow->source_port;
}

/*
 * Whether the entry is unchanged since the verdict. Renews its timeout to the value that the slow
 * path set last.
 */
static __always_inline int is_as_judged(struct nf_conn *ct, u32 direction, struct flow *flow,
					const struct flow_key *key)
{
	const u32 sure = IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED;
	const u32 young = IPS_SEEN_REPLY | IPS_CONFIRMED;
	const u32 flags = flow->flags;
	const u32 wanted = flags & FLOW_ONE_WAY ? IPS_CONFIRMED : flags & FLOW_YOUNG ? young : sure;
	const u32 odd = IPS_SEQ_ADJUST | IPS_DYING | IPS_TEMPLATE | IPS_UNTRACKED | IPS_HELPER |
			IPS_OFFLOAD | IPS_HW_OFFLOAD;
	u32 expires = ct->timeout, left = expires - (u32)bpf_jiffies64(), lost, back;
	u32 status = ct->status, judged = flow->status;

	/* After a flush, a packet of the other side may have made the entry anew, in its direction. */
	if (direction != !!(flags & FLOW_REPLY))
		return 0;
	/* Rules were evaluated with this bit and without it. */
	if (flags & FLOW_YOUNG) {
		if (status & IPS_ASSURED) {
			flow->status = judged | IPS_ASSURED;
			flow->flags = flags & ~FLOW_YOUNG;
		}
		status &= ~IPS_ASSURED;
		judged &= ~IPS_ASSURED;
	}
	/* Rules may match any status bit. */
	if (status != judged || (judged & (sure | odd)) != wanted || ct->mark != flow->mark ||
	    (s32)left <= 0)
		return 0;
	/* Conntrack does not see packets on the fast path, so the windows are tracked here. */
	if (key->protocol == IPPROTO_TCP && !follow(ct, flow))
		return 0;
	if (direction == 0 ? !is_reverse(&ct->tuplehash[1].tuple, flow, key->ipv6) :
			     !is_reverse(&ct->tuplehash[0].tuple, flow, key->ipv6))
		return 0;
	/* Seldom, but in time for a timeout of a second. */
	lost = flow->timeout - left;
	back = flow->expires - expires;
	/*
	 * The timeout decreased: the slow path set a shorter one on a packet of the other
	 * direction.
	 */
	if ((s32)lost <= 0 || ((s32)back > 0 && (u64)back * constants.tick > 1000000000ULL))
		flow->timeout = left;
	else if ((u64)lost * constants.tick > 1000000000ULL || lost > flow->timeout / 2)
		bpf_ct_change_timeout(ct, (u64)flow->timeout * constants.tick / 1000000);
	flow->expires = ct->timeout;
	return 1;
}

/* Size of struct bpf_sock_tuple for IPv6. */
#define IPV6_TUPLE 36
_Static_assert(__builtin_offsetof(struct flow_key, dest_port) + 2 -
			       __builtin_offsetof(struct flow_key, source) == IPV6_TUPLE,
	       "layout of struct flow_key");

/* Looks up conntrack's entry of a packet. The caller releases it. */
static __always_inline struct nf_conn *entry_of(struct __sk_buff *skb, const struct flow_key *key,
						struct bpf_ct_opts *opts)
{
	struct scratch *memory;
	u32 zero = 0;

	/* struct bpf_sock_tuple for IPv6 is part of the key. */
	if (key->ipv6)
		return bpf_skb_ct_lookup(skb, (void *)key->source, IPV6_TUPLE, opts, sizeof(*opts));
	memory = bpf_map_lookup_elem(&scratch, &zero);
	if (!memory)
		return 0;
	memory->tuple.source = key->source[0];
	memory->tuple.dest = key->dest[0];
	memory->tuple.source_port = key->source_port;
	memory->tuple.dest_port = key->dest_port;
	return bpf_skb_ct_lookup(skb, (void *)&memory->tuple, sizeof(memory->tuple), opts,
				 sizeof(*opts));
}

/* Whether conntrack has the connection in the state of the verdict. */
__verified_once int is_tracked(struct __sk_buff *skb, const struct flow_key *key,
			       struct flow *flow)
{
	struct bpf_ct_opts opts;
	struct nf_conn *ct;
	int same;

	if (!bpf_skb_ct_lookup || !bpf_ct_release || !bpf_ct_change_timeout || !key || !flow)
		return 0;
	/* A constant initialiser would be a copy in .rodata, beside the constants of abi.h. */
	__builtin_memset(&opts, 0, sizeof(opts));
	opts.netns_id = -1;
	opts.l4proto = key->protocol;
	ct = entry_of(skb, key, &opts);
	if (!ct)
		return flow->flags & FLOW_UNTRACKED;
	same = !(flow->flags & FLOW_UNTRACKED) && is_as_judged(ct, opts.dir, flow, key);
	bpf_ct_release(ct);
	return same;
}

/* Whether a packet of the connection may bypass conntrack. Its transport header is at `at`. */
static __always_inline int bypasses(struct __sk_buff *skb, u32 at, const struct flow_key *key,
				    struct flow *flow)
{
	if (!is_tracked(skb, key, flow))
		return 0;
	return key->protocol != IPPROTO_TCP || flow->flags & FLOW_UNTRACKED ||
	       (!find_segment(skb, at) && fits(flow));
}

/*
 * Handles the first segment of a connection before the slow path. If an earlier connection with
 * these addresses and ports has ended, conntrack would begin a new entry. But it may not know about
 * the end, because it has not seen all segments. Then let the old entry expire.
 */
__verified_once int reopen(struct __sk_buff *skb, const struct flow_key *packet, u32 at)
{
	struct bpf_ct_opts opts;
	struct flow_key key;
	struct connection *connection;
	struct tracked *tracked;
	struct segment segment;
	struct nf_conn *ct;
	struct tcphdr tcp;
	u32 index, state, was_reset, flags, ends = 1;

	if (!bpf_skb_ct_lookup || !bpf_ct_release || !bpf_ct_change_timeout || !packet)
		return 0;
	__builtin_memcpy(&key, packet, sizeof(key));
	/* As above. */
	__builtin_memset(&opts, 0, sizeof(opts));
	opts.netns_id = -1;
	opts.l4proto = key.protocol;
	key.netns = key.device = 0;
	key.place = FLOW_TRACKED;
	tracked = bpf_map_lookup_elem(&tracked_flows, &key);
	if (!tracked)
		return 0;
	index = tracked->connection;
	connection = bpf_map_lookup_elem(&connections, &index);
	if (!connection)
		return 0;
	/* Conntrack calls it invalid, and does not begin a new entry. */
	if (bpf_skb_load_bytes(skb, at, &tcp, TCP_HLEN) ||
	    read_segment(&tcp, skb->len - at, &segment) || !are_flags_valid(tcp.flags))
		return 0;
	state = connection->state;
	was_reset = connection->last_kind == LAST_RST && !connection->last;
	ct = entry_of(skb, &key, &opts);
	if (ct) {
		flags = ct->proto.tcp.seen[0].flags & ct->proto.tcp.seen[1].flags;
		if (flags & IP_CT_TCP_FLAG_BE_LIBERAL) {
			/* nf_conntrack_tcp_packet, TCP_CONNTRACK_SYN_SENT. */
			ends = ct->proto.tcp.state == TCP_CONNTRACK_TIME_WAIT ||
			       (state == CONNECTION_RESET && !opts.dir && was_reset);
			if (ends)
				bpf_ct_change_timeout(ct, 0);
		}
		bpf_ct_release(ct);
	}
	if (ends && state >= CONNECTION_TRACKED) {
		bpf_spin_lock(&connection->lock);
		if (connection->state == state)
			connection->state = CONNECTION_NONE;
		bpf_spin_unlock(&connection->lock);
	}
	return 0;
}

/* Writes an IPv4 or IPv6 address into a copy of the header, at `at`. */
static __always_inline void set_address(u8 *ip, u32 at, const u32 *address, u32 six)
{
	u64 sum;

	if (six) {
		__builtin_memcpy(ip + at, address, 16);
		return;
	}
	/* RFC 1624: subtract the old words, add the new ones. */
	sum = (u16) ~*(u16 *)(ip + 10);
	sum += (u16) ~*(u16 *)(ip + at);
	sum += (u16) ~*(u16 *)(ip + at + 2);
	__builtin_memcpy(ip + at, address, 4);
	sum += *(u16 *)(ip + at);
	sum += *(u16 *)(ip + at + 2);
	*(u16 *)(ip + 10) = ~fold(sum);
}

/* Sets the translated destination, which route lookups must use. */
static __always_inline void set_dest(u8 *ip, const struct flow *flow, u32 six)
{
	if (six)
		set_address(ip, 24, flow->dest, 1);
	else
		set_address(ip, 16, flow->dest, 0);
}

/*
 * Translates a packet. `start` is the offset of its IP header; `ip` is a copy with the new
 * destination. Nonzero: the packet is partly changed.
 */
static __attribute__((noinline)) int translate(struct __sk_buff *skb, u32 start, u8 *ip,
					       const struct flow_key *key, const struct flow *flow)
{
	u32 six, ports, check;
	u64 mangled;
	s64 diff;

	if (!ip || !key || !flow)
		return -1;
	six = key->ipv6;
	ports = start + header_length(key);
	check = ports + (key->protocol == IPPROTO_TCP ? TCP_CHECK : UDP_CHECK);
	/* A datagram may have no checksum. */
	mangled = key->protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	if (six) {
		set_address(ip, 8, flow->source, 1);
		diff = bpf_csum_diff(key->source, 32, flow->source, 32, 0);
	} else {
		set_address(ip, 12, flow->source, 0);
		diff = bpf_csum_diff(key->source, 4, flow->source, 4, 0);
		if (diff >= 0)
			diff = bpf_csum_diff(key->dest, 4, flow->dest, 4, diff);
	}
	if (diff < 0 || bpf_l4_csum_replace(skb, check, 0, diff, mangled | BPF_F_PSEUDO_HDR) ||
	    bpf_l4_csum_replace(skb, check, key->source_port, flow->source_port, mangled | 2) ||
	    bpf_l4_csum_replace(skb, check, key->dest_port, flow->dest_port, mangled | 2) ||
	    bpf_skb_store_bytes(skb, ports, &flow->source_port, 4, 0))
		return -1;
	return six ? bpf_skb_store_bytes(skb, start + 8, ip + 8, 32, 0) :
		     bpf_skb_store_bytes(skb, start + 10, ip + 10, 10, 0);
}

#endif
