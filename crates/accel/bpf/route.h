/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Packets to an address of the host itself: what ip_rcv, ip_forward and their
 * IPv6 counterparts would do with them. The way on is asked of the kernel for each
 * packet, so no copy of routes and neighbours can be old.
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
_Static_assert(sizeof(struct bpf_fib_lookup) == 64, "the kernel's");

static long (*const bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int plen,
				     u32 flags) = (void *)69;

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_HOPOPTS 0

/* Addresses that ip_route_input_slow and ip6_forward look at before the route:
 * none's, loopback, multicast and beyond, link-local, IPv4 in IPv6.
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

/* Whether an IP header says what the packet is, whose length is `len`: no options, no
 * padding behind it, no wrong sum. ip_rcv and br_netfilter drop or trim others.
 */
static __always_inline int is_sound(u16 proto, const u8 *ip, u32 len)
{
	if (proto == htons(ETH_P_IP))
		return ip[0] == 0x45 && *(const u16 *)(ip + 2) == htons(len) &&
		       fold(add(ip, IP_HLEN / 2)) == 0xffff;
	/* Hop-by-hop options ask something of every router. */
	return len >= IPV6_HLEN && *(const u16 *)(ip + 4) == htons(len - IPV6_HLEN) &&
	       ip[6] != IPPROTO_HOPOPTS;
}

/* Whether a router forwards such a header as it is, time to live apart. */
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

	/* As in segment_headers(). */
	asm volatile("" : "+r"(ttl), "+r"(limit));
	return proto == htons(ETH_P_IP) ? ttl : limit;
}

/* Asks for the way of a packet that came by `device`: from its source to its
 * destination, or `back`. A part of it that leaves alone has `len` bytes.
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
	/* Unreachable, local, too big, no neighbour, not forwarding: not 0. */
	return bpf_fib_lookup(skb, fib, sizeof(*fib), flags);
}

/* All that the way back of a flow's packet depends on beside addresses and device: the state of
 * routes, and the DSCP; over IPv4, 0 otherwise.
 */
static __always_inline u64 way_back(struct __sk_buff *skb, u16 proto, const u8 *ip)
{
	u32 tos = ip[1];

	/* As in segment_headers(). */
	asm volatile("" : "+r"(tos));
	if (proto != htons(ETH_P_IP))
		return 0;
	return (u64)routes_of(bpf_cast_to_kern_ctx(skb)) << 32 | tos << 1 | 1;
}

/* The device and the addresses by which the host forwards the packet: 0 when
 * there are some. `flow`: that it belongs to, or null.
 */
static __always_inline int route(struct __sk_buff *skb, u32 device, u16 proto, const u8 *ip,
				 u32 len, struct bpf_fib_lookup *fib, struct flow *flow)
{
	/* Before the question: what changes meanwhile makes the answer an old one. */
	u64 state = flow ? way_back(skb, proto, ip) : 0;

	/* The way back first: a source that is not routed to where the packet came
	 * from is the host's own, or one that rp_filter would have to judge
	 * (fib_validate_source). A length of 0 would be that of the packet.
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

/* One hop less, the sum as ip_decrease_ttl has it. */
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

/* Whether this family is routed at an address of the host. */
static __always_inline u32 router_flag(u16 proto)
{
	return proto == htons(ETH_P_IP) ? FDB_ROUTER_MAC : FDB_ROUTER_MAC_IPV6;
}

/* Whether packets of this family come to rules: routed ones, and with br_netfilter those that
 * cross the bridge.
 */
static __always_inline int comes_to_rules(u32 domain, u16 proto, int routed)
{
	u32 rules = proto == htons(ETH_P_IP) ? DOMAIN_RULES : DOMAIN_RULES_IPV6;

	return domain & rules && (routed || domain & DOMAIN_CHECKED);
}

#endif
