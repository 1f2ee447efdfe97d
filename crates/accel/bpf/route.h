/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Routed packets, as ip_rcv, ip_forward and their IPv6 counterparts handle them. The route is
 * looked up in the kernel for each packet, so there is no copy of routes and neighbours that could
 * be outdated.
 */
#ifndef OVERLANE_ACCEL_ROUTE_H
#define OVERLANE_ACCEL_ROUTE_H

#include "abi.h"
#include "frame.h"

/* include/uapi/linux/bpf.h. */
#define BPF_FIB_LOOKUP_SKIP_NEIGH (1U << 2)

struct bpf_fib_lookup {
	u8 family;
	u8 l4_protocol;
	u16 sport;
	u16 dport;
	u16 tot_len;
	u32 ifindex;
	u32 tos; /* IPv4: in the first byte; IPv6: class and flow label */
	u32 src[4];
	u32 dst[4];
	u32 vlan;
	u16 smac[3];
	u16 dmac[3];
};
_Static_assert(sizeof(struct bpf_fib_lookup) == 64, "size in the kernel");

/*
 * On the stack of `encap` and `decap` it would be too much together with the functions that they
 * call: Linux 6.8 counts each frame in units of 32 bytes. The programs do not interrupt each other
 * on a CPU.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct bpf_fib_lookup);
} found_routes SEC(".maps");

static __always_inline struct bpf_fib_lookup *found_route(void)
{
	u32 index = 0;

	return bpf_map_lookup_elem(&found_routes, &index);
}

static long (*const bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int plen,
				     u32 flags) = (void *)69;

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_HOPOPTS 0

/*
 * Excludes addresses that ip_route_input_slow and ip6_forward check before the route: unspecified,
 * loopback, multicast and above, link-local, IPv4-mapped.
 */
static __always_inline int plain4(const u8 *address)
{
	return address[0] && address[0] != 127 && address[0] < 224;
}

static __always_inline int plain6(const u8 *address)
{
	return address[0] && address[0] != 0xff &&
	       !(address[0] == 0xfe && (address[1] & 0xc0) == 0x80);
}

/*
 * Whether the IP header is consistent with a packet of `len` bytes: no options, no padding, a valid
 * checksum. ip_rcv and br_netfilter drop or trim other packets.
 */
static __always_inline int is_sound(u16 proto, const u8 *ip, u32 len)
{
	if (proto == htons(ETH_P_IP))
		return ip[0] == 0x45 && *(const u16 *)(ip + 2) == length_field(len) &&
		       fold(add(ip, IP_HLEN / 2)) == 0xffff;
	/* Hop-by-hop options must be processed by every router. */
	return len >= IPV6_HLEN && *(const u16 *)(ip + 4) == length_field(len - IPV6_HLEN) &&
	       ip[6] != IPPROTO_HOPOPTS;
}

/*
 * Whether the packet is a fragment, or has IPv6 extension headers in front of which one may hide.
 * Conntrack, which any rule of the namespace switches on, holds fragments until their datagram is
 * whole (nf_defrag_ipv4, nf_defrag_ipv6).
 */
static __always_inline int may_be_fragment(u16 proto, const u8 *ip)
{
	/* MF flag or an offset. */
	if (proto == htons(ETH_P_IP))
		return (ip[6] & 0x3f) || ip[7];
	return ip[6] != IPPROTO_TCP && ip[6] != IPPROTO_UDP && ip[6] != IPPROTO_ICMPV6;
}

/* Whether a router forwards the packet unchanged, apart from the time to live. */
static __always_inline int is_plain(u16 proto, const u8 *ip, u32 len)
{
	if (!is_sound(proto, ip, len))
		return 0;
	if (proto == htons(ETH_P_IP))
		return plain4(ip + 12) && plain4(ip + 16);
	return plain6(ip + 8) && plain6(ip + 24);
}

static __always_inline int hops(u16 proto, const u8 *ip)
{
	u32 ttl = ip[8], limit = ip[7];

	/* Keep clang from merging the loads, see segment_headers(). */
	asm volatile("" : "+r"(ttl), "+r"(limit));
	return proto == htons(ETH_P_IP) ? ttl : limit;
}

/*
 * Looks up the route of a packet that arrived on `device`: from source to destination, or with
 * `back` the reverse. `len` is the layer 3 length of a segment.
 */
static __always_inline int ask(struct __sk_buff *skb, struct bpf_fib_lookup *fib, u32 device,
			       u16 proto, const u8 *ip, int back, u32 len, u32 flags)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = device;
	fib->tot_len = len;
	if (proto == htons(ETH_P_IP)) {
		fib->family = AF_INET;
		*(u8 *)&fib->tos = ip[1];
		__builtin_memcpy(fib->src, ip + (back ? 16 : 12), 4);
		__builtin_memcpy(fib->dst, ip + (back ? 12 : 16), 4);
	} else {
		fib->family = AF_INET6;
		__builtin_memcpy(&fib->tos, ip, 4);
		fib->tos &= htonl(0x0fffffff);
		__builtin_memcpy(fib->src, ip + (back ? 24 : 8), 16);
		__builtin_memcpy(fib->dst, ip + (back ? 8 : 24), 16);
	}
	/* Nonzero: unreachable, local, too big, no neighbour, or forwarding is off. */
	return bpf_fib_lookup(skb, fib, sizeof(*fib), flags);
}

/*
 * Returns the inputs of the reverse route check beside addresses and device: the routes' generation
 * and the DSCP. 0 for IPv6, which is not cached.
 */
static __always_inline u64 way_back(struct __sk_buff *skb, u16 proto, const u8 *ip)
{
	u32 tos = ip[1];

	/* Keep clang from merging the loads, see segment_headers(). */
	asm volatile("" : "+r"(tos));
	if (proto != htons(ETH_P_IP))
		return 0;
	return (u64)routes_of(skb) << 32 | tos << 1 | 1;
}

/*
 * Looks up the output device and Ethernet addresses. Returns 0 on success. `flow` is the packet's
 * flow or NULL.
 */
static __always_inline int route(struct __sk_buff *skb, u32 device, u16 proto, const u8 *ip,
				 u32 len, struct bpf_fib_lookup *fib, struct flow *flow)
{
	/*
	 * Read the generation before the lookup, so that a concurrent change invalidates the cached
	 * result.
	 */
	u64 state = flow ? way_back(skb, proto, ip) : 0;

	/*
	 * Check the reverse route first. If the source is not routed to the input device, it is the
	 * host's own address, or rp_filter has to decide (fib_validate_source). A length of 0 would
	 * stand for the packet's length.
	 */
	if (!state || flow->way_back != state) {
		if (ask(skb, fib, device, proto, ip, 1, 1, BPF_FIB_LOOKUP_SKIP_NEIGH) ||
		    fib->ifindex != device)
			return -1;
		if (state)
			flow->way_back = state;
	}
	return ask(skb, fib, device, proto, ip, 0, len, 0);
}

/* Decrements the hop count and updates the checksum as ip_decrease_ttl does. */
static __always_inline void age(u16 proto, u8 *ip)
{
	u32 four = proto == htons(ETH_P_IP);
	u32 check = *(u16 *)(ip + 10), ttl = ip[8] - four, limit = ip[7] - !four;

	asm volatile("" : "+r"(check), "+r"(ttl), "+r"(limit));
	if (four) {
		check += htons(0x0100);
		check += check >= 0xffff;
	}
	*(u16 *)(ip + 10) = check;
	ip[8] = ttl;
	ip[7] = limit;
}

/* Returns the flag that routes this family at a host's own address. */
static __always_inline u32 router_flag(u16 proto)
{
	return proto == htons(ETH_P_IP) ? FDB_ROUTER_MAC : FDB_ROUTER_MAC_IPV6;
}

/* Whether packets of this family pass rules: routed ones, and bridged ones with br_netfilter. */
static __always_inline int comes_to_rules(u32 domain, u16 proto, int routed)
{
	u32 rules = proto == htons(ETH_P_IP) ? DOMAIN_RULES : DOMAIN_RULES_IPV6;

	return domain & rules && (routed || domain & DOMAIN_CHECKED);
}

#endif
