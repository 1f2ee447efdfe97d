// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The fast path beside a bridge or routes and their VXLAN devices.
 *
 * `egress` runs at the tcx ingress of a tenant's device and puts the outer
 * headers on; `ingress` at the tcx ingress of the underlay NIC and takes them
 * off. Nothing is learned here: what may be forwarded, and how, is in the maps,
 * which src/maps.rs keeps in step with the kernel. A packet for which anything
 * is not as expected goes on untouched, to the bridge, routes and the VXLAN device, and
 * is counted by reason.
 *
 * Where bridge and VXLAN device are in a sandbox namespace and the NIC is not (Docker's
 * overlay networks), a veth pair joins the two: `egress` and `ingress` decide and change
 * the packet, `outward` and `inward`, each at the end of the pair that it comes out of,
 * only pass it on.
 */
#include "bpf.h"
#include "abi.h"

/* include/uapi/linux/bpf.h. */
#define BPF_F_NO_PREALLOC 1
#define BPF_ADJ_ROOM_MAC 1
#define BPF_F_ADJ_ROOM_FIXED_GSO (1ULL << 0)
#define BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 (1ULL << 1)
#define BPF_F_ADJ_ROOM_ENCAP_L4_UDP (1ULL << 4)
#define BPF_F_ADJ_ROOM_NO_CSUM_RESET (1ULL << 5)
#define BPF_F_ADJ_ROOM_ENCAP_L2(len) ((u64)(len) << 56)
#define BPF_F_ADJ_ROOM_ENCAP_L2_ETH (1ULL << 6)
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
#define BPF_CSUM_LEVEL_DEC 2
#define BPF_TCP_LISTEN 10
#define BPF_TCP_NEW_SYN_RECV 12

struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
	u32 mark;
	u32 priority;
	u32 src_ip4;
	u32 src_ip6[4];
	u32 src_port;
	u16 dst_port;
	u16 : 16;
	u32 dst_ip4;
	u32 dst_ip6[4];
	u32 state;
};

struct bpf_sock_tuple {
	union {
		struct {
			u32 saddr;
			u32 daddr;
			u16 sport;
			u16 dport;
		} ipv4;
		struct {
			u32 saddr[4];
			u32 daddr[4];
			u16 sport;
			u16 dport;
		} ipv6;
	};
};

static u32 (*const bpf_get_hash_recalc)(struct __sk_buff *skb) = (void *)34;
static long (*const bpf_skb_adjust_room)(struct __sk_buff *skb, s32 len_diff, u32 mode,
					 u64 flags) = (void *)50;
static long (*const bpf_sk_release)(void *sock) = (void *)86;
static struct bpf_sock *(*const bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple,
						     u32 size, u64 netns,
						     u64 flags) = (void *)99;
static long (*const bpf_csum_level)(struct __sk_buff *skb, u64 level) = (void *)135;
static long (*const bpf_redirect_peer)(u32 ifindex, u64 flags) = (void *)155;
static u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;

/* The kernel's own view of the packet (Linux 6.2): the checksum's state is in
 * no helper.
 */
struct sk_buff {
	u8 ip_summed : 2;
	u16 csum_start;
	u16 csum_offset;
	u16 mac_header;
} __attribute__((preserve_access_index));
extern void *bpf_cast_to_kern_ctx(void *ctx) __attribute__((section(".ksyms")));

/* include/linux/skbuff.h. */
#define CHECKSUM_NONE 0
#define CHECKSUM_UNNECESSARY 1
#define CHECKSUM_COMPLETE 2
#define CHECKSUM_PARTIAL 3

static __always_inline u32 ip_summed(const struct sk_buff *skb)
{
	/* A bit field's place, size and shifts as CO-RE finds them. */
	const void *place = (const void *)skb +
			    __builtin_preserve_field_info(skb->ip_summed, 0);
	u64 value = 0;

	asm volatile("" : "=r"(place) : "0"(place));
	switch (__builtin_preserve_field_info(skb->ip_summed, 1)) {
	case 1:
		value = *(const u8 *)place;
		break;
	case 2:
		value = *(const u16 *)place;
		break;
	case 4:
		value = *(const u32 *)place;
		break;
	case 8:
		value = *(const u64 *)place;
		break;
	}
	value <<= __builtin_preserve_field_info(skb->ip_summed, 4);
	value >>= __builtin_preserve_field_info(skb->ip_summed, 5);
	return value;
}

#define IPPROTO_ICMPV6 58
#define IP_HLEN 20
#define IPV6_HLEN 40
/* Outer IPv4, UDP, VXLAN (RFC 7348), inner Ethernet: what encapsulation adds. */
#define OVERHEAD 50
#define ECN_MASK 3
#define ECN_CE 3
#define ECN_ECT_0 2

struct ethhdr {
	u16 dest[3];
	u16 source[3];
	u16 proto;
} __attribute__((packed));

struct vxlanhdr {
	u32 flags;
	u32 vni; /* the VNI is its first three bytes */
} __attribute__((packed));

struct outer {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	struct vxlanhdr vxlan;
	struct ethhdr inner;
} __attribute__((packed, aligned(8)));

/* As much of the inner IP header as a router changes, up to the next 8 bytes. */
#define CHANGED 16

/* What is written in front of the rest of a packet. */
struct front {
	struct outer outer;
	u8 ip[CHANGED];
} __attribute__((packed, aligned(8)));
_Static_assert(sizeof(struct front) == 14 + 20 + 8 + 8 + 14 + CHANGED, "written as it is");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct state);
} state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct place);
	__type(value, struct port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct vtep_key);
	__type(value, struct vtep);
} vteps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mac_key);
	__type(value, struct fdb);
} fdb SEC(".maps");

/* The FDB's entries at accelerated ports once more: one look-up tells that the
 * port is one, and that the address is where it was.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mac_key);
	__type(value, struct source);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, u32);
	__type(value, struct count);
} counts SEC(".maps");

/* The number of the namespace that these programs are attached in. */
const volatile u32 netns = 0;

/* IP identifications, one counter for a few destinations, as the kernel has it
 * (net/ipv4/route.c, ip_idents); each on a cache line of its own.
 */
struct {
	u32 next;
	u32 pad[15];
} idents[64] SEC(".bss") __attribute__((aligned(64)));

static __always_inline void count(u32 reason, u32 len)
{
	struct count *counter = bpf_map_lookup_elem(&counts, &reason);

	if (counter) {
		counter->packets++;
		counter->bytes += len;
	}
}

/* The packet goes on as it came; programs of others have their turn. */
static __always_inline int pass(struct __sk_buff *skb, u32 reason)
{
	count(reason, skb->len);
	return TCX_NEXT;
}

/* Bytes of the packet: from its linear part, where most drivers have the headers,
 * without a call. The kernel lets packets be read at any address where that is
 * cheap, so the compiler is told of an alignment that may not be.
 */
static __always_inline int load(const struct __sk_buff *skb, u32 at, void *to, u32 len)
{
	const u8 *data = (const u8 *)(long)skb->data;

	if (data + at + len > (const u8 *)(long)skb->data_end)
		return bpf_skb_load_bytes(skb, at, to, len);
	__builtin_memcpy(to, __builtin_assume_aligned(data + at, 8), len);
	return 0;
}

/* The mirror's state where it is whole and fresh, NULL otherwise. The time is that
 * of the last tick: cheaper, and old by 10 ms at the most.
 */
static __always_inline struct state *fresh(u64 now)
{
	u32 zero = 0;
	struct state *mirror = bpf_map_lookup_elem(&state, &zero);

	/* Odd: being rewritten. A heartbeat from the future is one between two
	 * readings of the clock.
	 */
	if (!mirror || mirror->generation & 1 ||
	    (now > mirror->heartbeat && now - mirror->heartbeat > STALE_NS))
		return 0;
	return mirror;
}

/* Whether the slow path is due a packet of this entry: it learns from it, ages
 * by it and counts it.
 */
static __always_inline int due(u64 *last, u64 now, u64 interval)
{
	if (now - *last <= interval)
		return 0;
	*last = now;
	return 1;
}

static __always_inline struct fdb *lookup(u32 where, u32 domain, const u16 *mac)
{
	struct mac_key key = {
		.device = domain, .mac = { mac[0], mac[1], mac[2] }, .netns = where
	};

	return bpf_map_lookup_elem(&fdb, &key);
}

static __always_inline u16 fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static __always_inline u64 add(const void *from, u32 words)
{
	const u16 *word = from;
	u64 sum = 0;

#pragma clang loop unroll(full)
	for (u32 i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

/* The inner packet's DSCP and ECN; -1 for a header that is none. */
static __always_inline int inner_tos(u16 proto, const u8 *ip)
{
	if (proto == htons(ETH_P_IP))
		return ip[0] >> 4 == 4 ? ip[1] : -1;
	return ip[0] >> 4 == 6 ? (ip[0] << 4 | ip[1] >> 4) & 0xff : -1;
}

/* Headers of a segment of a super-packet from the IP header on, which is at
 * `start`; 0: cannot say.
 */
static __always_inline u32 segment_headers(struct __sk_buff *skb, u32 start, u16 proto,
					   const u8 *ip)
{
	u32 length, at, protocol, protocol4 = ip[9], protocol6 = ip[6];
	u8 offset;

	/* Else clang computes the address to load from in a way that the
	 * verifier does not follow.
	 */
	asm volatile("" : "+r"(protocol4), "+r"(protocol6));
	if (proto == htons(ETH_P_IP)) {
		length = (ip[0] & 15) * 4;
		protocol = protocol4;
	} else {
		length = IPV6_HLEN;
		protocol = protocol6;
	}
	if (protocol == IPPROTO_UDP)
		return length + 8;
	/* Behind extension headers the length would be another. */
	at = start + length + 12;
	if (protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, at, &offset, 1))
		return 0;
	return length + (offset >> 4) * 4;
}

/* The layer 3 packet's length, a super-packet's largest segment's: gso_size is
 * payload. 0: cannot say.
 */
static __always_inline u32 largest(struct __sk_buff *skb, u32 start, u32 len, u16 proto,
				   const u8 *ip)
{
	u32 headers;

	if (!skb->gso_size)
		return len;
	headers = segment_headers(skb, start, proto, ip);
	return headers ? headers + skb->gso_size : 0;
}

/* The outer UDP checksum from that of the inner packet, which is left to the
 * device and thus known without its payload (include/net/udp_tunnel.h,
 * lco_csum). Fails where the kernel would do it otherwise.
 */
static __always_inline int outer_checksum(struct __sk_buff *skb, struct outer *outer,
					  const u8 *ip, u32 len)
{
	struct sk_buff *kernel = bpf_cast_to_kern_ctx(skb);
	u32 start, field;
	u64 sum;
	u16 inner;

	if (ip_summed(kernel) != CHECKSUM_PARTIAL)
		return -1;
	start = (u16)(kernel->csum_start - kernel->mac_header);
	field = start + kernel->csum_offset;
	if (start == ETH_HLEN + IP_HLEN)
		sum = add(ip, IP_HLEN / 2);
	else if (start == ETH_HLEN + IPV6_HLEN)
		sum = add(ip, IPV6_HLEN / 2);
	else
		return -1;
	if (bpf_skb_load_bytes(skb, field, &inner, sizeof(inner)))
		return -1;
	sum += (u16)~inner;
	sum += add(&outer->udp, (8 + 8 + ETH_HLEN) / 2);
	/* Pseudo header. */
	sum += add(&outer->ip.saddr, 4);
	sum += htons(IPPROTO_UDP);
	sum += outer->udp.len;
	inner = ~fold(sum);
	outer->udp.check = inner ? inner : 0xffff;
	return 0;
}

#include "route.h"

static __always_inline int is_icmpv6(u16 proto, const u8 *ip)
{
	u32 next = ip[6];

	/* As in segment_headers(). */
	asm volatile("" : "+r"(next));
	return proto == htons(ETH_P_IPV6) && next == IPPROTO_ICMPV6;
}

/* Whether this family is routed at an address of the host. */
static __always_inline u32 own_flag(u16 proto)
{
	return proto == htons(ETH_P_IP) ? FDB_OWN : FDB_OWN_IPV6;
}

SEC("tcx/ingress")
int egress(struct __sk_buff *skb)
{
	u64 now = bpf_ktime_get_coarse_ns();
	u32 ifindex = skb->ifindex, len = skb->len, hash, total, segments, longest;
	struct front front = {};
	struct bpf_fib_lookup way;
	struct mac_key key = { .device = ifindex, .netns = netns };
	struct place port = { .netns = netns, .ifindex = ifindex };
	struct state *mirror;
	struct source *from;
	struct fdb *to;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	int tos, verdict, routed = 0;
	u16 proto;

	mirror = fresh(now);
	if (!mirror)
		return pass(skb, EGRESS_STALE);
	if (skb->vlan_present)
		return pass(skb, EGRESS_VLAN);
	if (load(skb, 0, &front.outer.inner, ETH_HLEN))
		return pass(skb, EGRESS_MALFORMED);
	/* Group bit: the first on the wire. Replication is the slow path's. */
	if (*(u8 *)&front.outer.inner.dest & 1)
		return pass(skb, EGRESS_GROUP);
	proto = front.outer.inner.proto;
	if (skb->protocol != proto ||
	    (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6)))
		return pass(skb, EGRESS_PROTOCOL);
	if (proto == htons(ETH_P_IP) ? load(skb, ETH_HLEN, ip, IP_HLEN) :
				       load(skb, ETH_HLEN, ip, IPV6_HLEN))
		return pass(skb, EGRESS_MALFORMED);
	tos = inner_tos(proto, ip);
	if (tos < 0)
		return pass(skb, EGRESS_MALFORMED);
	/* The bridge would learn an address that has moved. */
	__builtin_memcpy(key.mac, front.outer.inner.source, 6);
	from = bpf_map_lookup_elem(&sources, &key);
	if (!from)
		return pass(skb, bpf_map_lookup_elem(&ports, &port) ? EGRESS_SOURCE :
									 EGRESS_PORT);
	longest = largest(skb, ETH_HLEN, len - ETH_HLEN, proto, ip);
	if (!longest || len + OVERHEAD - ETH_HLEN > 0xffff)
		return pass(skb, EGRESS_MTU);
	if (from->flags & DOMAIN_CHECKED && !is_sound(proto, ip, len - ETH_HLEN))
		return pass(skb, EGRESS_MALFORMED);
	to = lookup(netns, from->domain, front.outer.inner.dest);
	if (to && to->flags & FDB_OWN) {
		if (!is_plain(proto, ip, len - ETH_HLEN) || !(to->flags & own_flag(proto)))
			return pass(skb, EGRESS_MALFORMED);
		if (hops(proto, ip) <= 1)
			return pass(skb, EGRESS_TTL);
		if (route(skb, from->domain, proto, ip, longest, &way))
			return pass(skb, EGRESS_ROUTE);
		to = lookup(netns, way.ifindex, way.dmac);
		/* Not to a bridge with a VXLAN device, which nothing has tested. */
		if (to && to->vxlan != way.ifindex)
			return pass(skb, EGRESS_ROUTE);
		__builtin_memcpy(&front.outer.inner.dest, way.dmac, 6);
		__builtin_memcpy(&front.outer.inner.source, way.smac, 6);
		age(proto, ip);
		routed = 1;
	}
	if (!to || to->flags & (FDB_LOCAL | FDB_OWN))
		return pass(skb, EGRESS_DESTINATION);
	/* drivers/net/vxlan, vxlan_xmit: unicast solicitations, too. */
	if (to->flags & FDB_PROXY && is_icmpv6(proto, ip))
		return pass(skb, EGRESS_PROTOCOL);
	if (longest > to->mtu)
		return pass(skb, EGRESS_MTU);
	if (due(&from->refreshed, now, mirror->refresh) |
	    due(&to->refreshed_tx, now, mirror->refresh))
		return pass(skb, EGRESS_REFRESH);
	__builtin_memcpy(front.ip, ip, CHANGED);
	/* drivers/net/vxlan hashes the Ethernet header then. */
	hash = bpf_get_hash_recalc(skb);
	if (!hash)
		return pass(skb, EGRESS_HASH);

	/* include/net/udp.h, udp_flow_src_port. */
	hash ^= hash << 16;
	front.outer.udp.source =
		htons((((u64)hash * (to->port_max - to->port_min)) >> 32) + to->port_min);
	front.outer.udp.dest = to->udp_port;
	front.outer.udp.len = htons(len + 16);
	front.outer.vxlan.flags = htonl(0x08000000);
	front.outer.vxlan.vni = to->vni;
	front.outer.ip.saddr = to->local;
	front.outer.ip.daddr = to->remote;
	if (to->flags & FDB_CHECKSUM) {
		/* BPF cannot ask for the checksum of each segment
		 * (SKB_GSO_UDP_TUNNEL_CSUM), nor sum up a payload: the VXLAN
		 * device does; its FDB has the same entry. Only the bridge is
		 * saved.
		 */
		if (skb->gso_size || outer_checksum(skb, &front.outer, ip, len)) {
			if (routed && bpf_skb_store_bytes(skb, 0, &front.outer.inner,
							  ETH_HLEN + CHANGED, 0)) {
				count(EGRESS_LOST, len);
				return TC_ACT_SHOT;
			}
			count(EGRESS_SHORTCUT, len);
			return bpf_redirect(to->vxlan, 0);
		}
	}
	segments = skb->gso_size ? skb->gso_segs : 1;
	if (!segments)
		segments = 1;
	total = len + OVERHEAD - ETH_HLEN;
	front.outer.ip.version_ihl = 0x45;
	/* RFC 6040, normal mode (include/net/inet_ecn.h, INET_ECN_encapsulate). */
	tos &= ECN_MASK;
	front.outer.ip.tos = to->tos | (tos == ECN_CE ? ECN_ECT_0 : tos);
	front.outer.ip.tot_len = htons(total);
	front.outer.ip.id = htons((u16)__sync_fetch_and_add(
		&idents[(to->remote ^ to->remote >> 16 ^ to->remote >> 24) & 63].next, segments));
	front.outer.ip.frag_off = to->frag_off;
	front.outer.ip.ttl = to->ttl;
	front.outer.ip.protocol = IPPROTO_UDP;
	front.outer.ip.check = ~fold(add(&front.outer.ip, IP_HLEN / 2));
	__builtin_memcpy(front.outer.eth.dest, to->outer_dest, 6);
	__builtin_memcpy(front.outer.eth.source, to->outer_source, 6);
	front.outer.eth.proto = htons(ETH_P_IP);
	/* What it refuses (UFO, tunnels in tunnels) it has not touched. */
	if (bpf_skb_adjust_room(skb, OVERHEAD, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET |
					BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 |
					BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
					BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN)))
		return pass(skb, EGRESS_UNFIT);
	/* Half changed it may not go on. */
	if (bpf_skb_store_bytes(skb, 0, &front, sizeof(front), 0)) {
		count(EGRESS_LOST, len);
		return TC_ACT_SHOT;
	}
	if (from->trampoline) {
		skb->mark = to->port;
		verdict = bpf_redirect_peer(from->trampoline, 0);
	} else {
		verdict = bpf_redirect(to->port, 0);
	}
	count(EGRESS_HIT, len);
	return verdict;
}

/* From a sandbox to the NIC: what `egress` has sent here. Nothing else has business
 * on this device.
 */
SEC("tcx/ingress")
int outward(struct __sk_buff *skb)
{
	u32 nic = skb->mark;

	if (!nic)
		return TC_ACT_SHOT;
	skb->mark = 0;
	return bpf_redirect(nic, 0);
}

/* Into a sandbox to the tenant: what `ingress` has sent here. */
SEC("tcx/ingress")
int inward(struct __sk_buff *skb)
{
	u32 port = skb->mark;

	if (!port)
		return TC_ACT_SHOT;
	skb->mark = 0;
	if (port & MARK_PEER)
		return bpf_redirect_peer(port & ~MARK_PEER, 0);
	return bpf_redirect(port, 0);
}

/* Whether a connection of the tenant's own takes the super-packet. Its
 * gso_type still tells of the tunnel, which BPF cannot take back; it would
 * mislead a device that the tenant forwards it to.
 */
static __always_inline int is_taken(struct __sk_buff *skb, const struct fdb *to, u16 proto,
				    const u8 *ip)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sock;
	u32 at, size, listening;

	if (proto == htons(ETH_P_IP)) {
		if (ip[9] != IPPROTO_TCP || ip[0] != 0x45)
			return 0;
		__builtin_memcpy(&tuple.ipv4, ip + 12, 8);
		at = 64 + IP_HLEN;
		if (bpf_skb_load_bytes(skb, at, &tuple.ipv4.sport, 4))
			return 0;
		size = sizeof(tuple.ipv4);
	} else {
		if (ip[6] != IPPROTO_TCP)
			return 0;
		__builtin_memcpy(&tuple.ipv6, ip + 8, 32);
		at = 64 + IPV6_HLEN;
		if (bpf_skb_load_bytes(skb, at, &tuple.ipv6.sport, 4))
			return 0;
		size = sizeof(tuple.ipv6);
	}
	sock = bpf_skc_lookup_tcp(skb, &tuple, size, to->netns, 0);
	if (!sock)
		return 0;
	/* Such a socket may match an address that is not the tenant's. */
	listening = sock->state == BPF_TCP_LISTEN || sock->state == BPF_TCP_NEW_SYN_RECV;
	bpf_sk_release(sock);
	return !listening;
}

SEC("tcx/ingress")
int ingress(struct __sk_buff *skb)
{
	u64 now = bpf_ktime_get_coarse_ns(), flags;
	u32 len = skb->len, summed, longest;
	struct front front;
	struct bpf_fib_lookup way;
	struct vtep_key key = {};
	struct vtep *vtep;
	struct state *mirror;
	struct fdb *from, *to;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	int tos, ecn, routed = 0;
	u16 proto;

	/* What is no VXLAN for this host is not even counted. */
	if (skb->protocol != htons(ETH_P_IP) || skb->vlan_present ||
	    load(skb, 0, &front.outer, sizeof(front.outer)) ||
	    front.outer.ip.version_ihl != 0x45 || front.outer.ip.protocol != IPPROTO_UDP)
		return TCX_NEXT;
	key.vni = front.outer.vxlan.vni;
	key.port = front.outer.udp.dest;
	vtep = bpf_map_lookup_elem(&vteps, &key);
	if (!vtep)
		return TCX_NEXT;
	mirror = fresh(now);
	if (!mirror)
		return pass(skb, INGRESS_STALE);
	if (skb->pkt_type || front.outer.ip.daddr != vtep->local || skb->ifindex != vtep->nic)
		return pass(skb, INGRESS_NOT_OURS);
	if (front.outer.ip.frag_off & htons(0x3fff))
		return pass(skb, INGRESS_FRAGMENT);
	/* Wrong lengths, flags and sums the slow path judges; it also trims. */
	if (front.outer.ip.tot_len != htons(len - ETH_HLEN) ||
	    front.outer.udp.len != htons(len - ETH_HLEN - IP_HLEN) || len - ETH_HLEN > 0xffff ||
	    front.outer.vxlan.flags != htonl(0x08000000) ||
	    fold(add(&front.outer.ip, IP_HLEN / 2)) != 0xffff)
		return pass(skb, INGRESS_MALFORMED);
	if (*(u8 *)&front.outer.inner.dest & 1)
		return pass(skb, INGRESS_GROUP);
	proto = front.outer.inner.proto;
	if (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6))
		return pass(skb, INGRESS_PROTOCOL);
	if (proto == htons(ETH_P_IP) ? load(skb, sizeof(front.outer), ip, IP_HLEN) :
				       load(skb, sizeof(front.outer), ip, IPV6_HLEN))
		return pass(skb, INGRESS_MALFORMED);
	tos = inner_tos(proto, ip);
	if (tos < 0)
		return pass(skb, INGRESS_MALFORMED);
	/* Congestion is to be marked inside, or the packet dropped, or the
	 * oddity logged: RFC 6040, include/net/inet_ecn.h.
	 */
	ecn = front.outer.ip.tos & ECN_MASK;
	if (ecn == ECN_CE || (ecn && !(tos & ECN_MASK)))
		return pass(skb, INGRESS_ECN);
	/* The VXLAN device would learn an address that has moved. */
	from = lookup(vtep->netns, vtep->domain, front.outer.inner.source);
	if (!from || from->flags & FDB_LOCAL || from->remote != front.outer.ip.saddr ||
	    from->vni != front.outer.vxlan.vni || from->port != skb->ifindex)
		return pass(skb, INGRESS_SOURCE);
	longest = len - OVERHEAD - ETH_HLEN;
	if (vtep->flags & DOMAIN_CHECKED && !is_sound(proto, ip, longest))
		return pass(skb, INGRESS_MALFORMED);
	to = lookup(vtep->netns, vtep->domain, front.outer.inner.dest);
	/* Only where the VXLAN device is a domain by itself: routed, not bridged. */
	if (to && to->flags & FDB_OWN && vtep->domain == from->vxlan) {
		if (!is_plain(proto, ip, longest) || !(to->flags & own_flag(proto)))
			return pass(skb, INGRESS_MALFORMED);
		if (hops(proto, ip) <= 1)
			return pass(skb, INGRESS_TTL);
		longest = largest(skb, sizeof(front.outer), longest, proto, ip);
		if (!longest || route(skb, vtep->domain, proto, ip, longest, &way))
			return pass(skb, INGRESS_ROUTE);
		to = lookup(vtep->netns, way.ifindex, way.dmac);
		__builtin_memcpy(&front.outer.inner.dest, way.dmac, 6);
		__builtin_memcpy(&front.outer.inner.source, way.smac, 6);
		age(proto, ip);
		routed = 1;
	}
	if (!to || !(to->flags & FDB_LOCAL))
		return pass(skb, INGRESS_DESTINATION);
	summed = ip_summed(bpf_cast_to_kern_ctx(skb));
	/* The outer sum is the slow path's to check, unless done or left out. */
	if (summed == CHECKSUM_COMPLETE || (summed == CHECKSUM_NONE && front.outer.udp.check))
		return pass(skb, INGRESS_CHECKSUM);
	if (skb->gso_size) {
		if (!(to->flags & FDB_PEER) || !is_taken(skb, to, proto, ip))
			return pass(skb, INGRESS_GSO);
	} else if (longest > to->mtu) {
		return pass(skb, INGRESS_MTU);
	}
	/* The tenant's neighbour entry is confirmed by the router's packets only. */
	if (due(&from->refreshed_rx, now, mirror->refresh) |
	    (routed && due(&to->refreshed_rx, now, mirror->refresh)))
		return pass(skb, INGRESS_REFRESH);

	flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	if (proto == htons(ETH_P_IPV6))
		flags |= BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, -OVERHEAD, BPF_ADJ_ROOM_MAC, flags))
		return pass(skb, INGRESS_UNFIT);
	__builtin_memcpy(front.ip, ip, CHANGED);
	if (bpf_skb_store_bytes(skb, 0, &front.outer.inner, ETH_HLEN + CHANGED, 0)) {
		count(INGRESS_LOST, len);
		return TC_ACT_SHOT;
	}
	/* The outer sum is verified and gone (udp4_csum_init). */
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	/* What crosses namespaces loses both (__dev_forward_skb). */
	skb->mark = 0;
	skb->priority = 0;
	count(INGRESS_HIT, len - OVERHEAD);
	if (vtep->trampoline) {
		skb->mark = to->port | (to->flags & FDB_PEER ? MARK_PEER : 0);
		return bpf_redirect_peer(vtep->trampoline, 0);
	}
	if (to->flags & FDB_PEER)
		return bpf_redirect_peer(to->port, 0);
	return bpf_redirect(to->port, 0);
}
