/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Outer headers of both families: written as a VXLAN device writes them (drivers/net/vxlan,
 * vxlan_xmit_one; udp_tunnel_xmit_skb, udp_tunnel6_xmit_skb), and checked on receipt.
 */
#ifndef OVERLANE_ACCEL_OUTER_H
#define OVERLANE_ACCEL_OUTER_H

#include "abi.h"
#include "frame.h"
#include "maps.h"

/* The I flag: the VNI is valid. No other flag may be set (RFC 7348, section 5). */
#define VXLAN_FLAGS 0x08000000

/* Makes room for headers and writes them, starting at `from` in `struct front`. */
static __always_inline u32 put(struct __sk_buff *skb, const void *from, u32 overhead, u64 family)
{
	/* If this fails (UFO, nested tunnels), the packet is unchanged. */
	if (bpf_skb_adjust_room(skb, overhead, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET | family |
					BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
					BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN)))
		return ENCAP_UNFIT;
	/* The packet is partly changed, so the slow path cannot take it. */
	if (bpf_skb_store_bytes(skb, 0, from, ETH_HLEN + overhead + CHANGED, 0))
		return ENCAP_LOST;
	return ENCAP_HIT;
}

static __always_inline u32 wrap4(struct __sk_buff *skb, struct front *front,
				 const struct fdb *to, u32 tos)
{
	struct iphdr *ip = &front->four.ip;
	u32 segments = skb->gso_size ? skb->gso_segs : 1;

	if (!segments)
		segments = 1;
	ip->version_ihl = 0x45;
	ip->tos = tos;
	ip->tot_len = length_field(skb->len + OVERHEAD4 - ETH_HLEN);
	ip->id = htons((u16)__sync_fetch_and_add(
		&idents[(to->remote[0] ^ to->remote[0] >> 16 ^ to->remote[0] >> 24) & 63].next,
		segments));
	ip->frag_off = to->frag_off;
	ip->ttl = to->ttl;
	ip->protocol = IPPROTO_UDP;
	ip->saddr = to->local[0];
	ip->daddr = to->remote[0];
	ip->check = 0;
	ip->check = ~fold(add(ip, IP_HLEN / 2));
	__builtin_memcpy(front->four.eth.dest, to->outer_dest, 6);
	__builtin_memcpy(front->four.eth.source, to->outer_source, 6);
	front->four.eth.proto = htons(ETH_P_IP);
	return put(skb, &front->four.eth, OVERHEAD4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
}

static __always_inline u32 wrap6(struct __sk_buff *skb, struct front *front,
				 const struct fdb *to, u32 tos)
{
	struct ipv6hdr *ip = &front->six.ip;

	ip->flow = htonl(6 << 28 | tos << 20) | to->label;
	ip->payload_len = front->udp.len;
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = to->ttl;
	__builtin_memcpy(ip->saddr, to->local, sizeof(ip->saddr));
	__builtin_memcpy(ip->daddr, to->remote, sizeof(ip->daddr));
	__builtin_memcpy(front->six.eth.dest, to->outer_dest, 6);
	__builtin_memcpy(front->six.eth.source, to->outer_source, 6);
	front->six.eth.proto = htons(ETH_P_IPV6);
	return put(skb, &front->six.eth, OVERHEAD6, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6);
}

/* Fills in UDP and VXLAN headers, without the checksum. */
static __always_inline void set_tunnel(struct front *front, const struct fdb *to, u32 hash, u32 len)
{
	/* include/net/udp.h, udp_flow_src_port. */
	hash ^= hash << 16;
	front->udp.source =
		htons((((u64)hash * (to->port_max - to->port_min)) >> 32) + to->port_min);
	front->udp.dest = to->udp_port;
	front->udp.len = length_field(len + 16);
	front->vxlan.flags = htonl(VXLAN_FLAGS);
	front->vxlan.vni = to->vni;
}

/*
 * Whether the VXLAN device does not encapsulate the packet as it is: an outer length exceeds 64 KiB,
 * and the device would segment the packet first, or the kernel has no rule for its length fields.
 */
static __always_inline int is_beyond(const struct __sk_buff *skb, u16 proto, const u8 *ip, u32 len,
				     const struct fdb *to)
{
	if (len + OVERHEAD4 - ETH_HLEN <= 0xffff)
		return 0;
	return !skb->gso_size || !is_tcp(proto, ip) ||
	       len >= (proto == htons(ETH_P_IP) ? to->gso4 : to->gso6);
}

/*
 * Writes the outer checksum if the device sends one. Returns whether BPF cannot do that: it cannot
 * request a checksum per segment (SKB_GSO_UDP_TUNNEL_CSUM), nor sum up a payload.
 */
static __always_inline int is_sum_beyond(struct __sk_buff *skb, struct front *front, const u8 *ip,
					 const struct fdb *to)
{
	return to->flags & FDB_CHECKSUM &&
	       (skb->gso_size || outer_checksum(skb, front, ip, to->pseudo));
}

/*
 * Adds the outer headers. `tos` is the inner packet's. Returns ENCAP_HIT, ENCAP_UNFIT (packet
 * unchanged) or ENCAP_LOST.
 */
static __always_inline u32 wrap(struct __sk_buff *skb, struct front *front, const struct fdb *to,
				u32 tos)
{
	/* RFC 6040, normal mode (include/net/inet_ecn.h, INET_ECN_encapsulate). */
	u32 dscp = to->flags & FDB_INNER_TOS ? tos & ~ECN_MASK : to->tos, ecn = tos & ECN_MASK;

	tos = dscp | (ecn == ECN_CE ? ECN_ECT_0 : ecn);
	return to->flags & FDB_IPV6 ? wrap6(skb, front, to, tos) : wrap4(skb, front, to, tos);
}

/*
 * Whether the kernel can take the tunnel off a GSO packet: gso_type loses the tunnel flag, and
 * skb->encapsulation is cleared (net/core/filter.c, bpf_skb_net_shrink; since Linux 7.3). Without
 * that, only a tenant's own socket may get the packet, see is_taken().
 */
static __always_inline int unwraps_gso(void)
{
	if (constants.decap == DECAP_PROBE)
		/* bpf_core_enum_value_exists(). */
		return __builtin_preserve_enum_value(
			*(typeof(enum bpf_adj_room_flags) *)BPF_F_ADJ_ROOM_DECAP_L4_UDP, 0);
	return constants.decap == DECAP_WITH;
}

/* Removes the outer headers. `proto` is the inner protocol. Nonzero: the packet is unchanged. */
static __always_inline int unwrap(struct __sk_buff *skb, const int six, u16 proto)
{
	u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;

	if (proto == htons(ETH_P_IPV6))
		flags |= BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	else if (six)
		flags |= BPF_F_ADJ_ROOM_DECAP_L3_IPV4;
	/* A kernel that does not know the flag refuses it. */
	if (skb->gso_size && unwraps_gso())
		flags |= BPF_F_ADJ_ROOM_DECAP_L4_UDP;
	return bpf_skb_adjust_room(skb, six ? -OVERHEAD6 : -OVERHEAD4, BPF_ADJ_ROOM_MAC, flags);
}

/* Reads the front of a possible VXLAN packet. Nonzero: not VXLAN. */
static __always_inline int read4(struct __sk_buff *skb, struct front *front)
{
	return load(skb, 0, &front->four.eth, ETH_HLEN + OVERHEAD4) ||
	       front->four.ip.version_ihl != 0x45 || front->four.ip.protocol != IPPROTO_UDP;
}

/* Packets with extension headers before UDP take the slow path. */
static __always_inline int read6(struct __sk_buff *skb, struct front *front)
{
	return load(skb, 0, &front->six.eth, ETH_HLEN + OVERHEAD6) ||
	       front->six.ip.nexthdr != IPPROTO_UDP ||
	       (front->six.ip.flow & htonl(0xf0000000)) != htonl(6U << 28);
}

/* Whether the length fields match the packet and the header checksum is right. */
static __always_inline int is_whole4(const struct front *front, u32 len)
{
	return front->four.ip.tot_len == length_field(len - ETH_HLEN) &&
	       front->udp.len == length_field(len - ETH_HLEN - IP_HLEN) &&
	       fold(add(&front->four.ip, IP_HLEN / 2)) == 0xffff;
}

static __always_inline int is_whole6(const struct front *front, u32 len)
{
	return front->six.ip.payload_len == length_field(len - ETH_HLEN - IPV6_HLEN) &&
	       front->udp.len == front->six.ip.payload_len;
}

/* Returns the IPv6 traffic class. */
static __always_inline u32 class6(const struct front *front)
{
	return htonl(front->six.ip.flow) >> 20 & 0xff;
}

/* Compares two IPv6 addresses. */
static __always_inline int is_same(const void *one, const void *other)
{
	u32 a[4], b[4];

	__builtin_memcpy(a, one, sizeof(a));
	__builtin_memcpy(b, other, sizeof(b));
	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]));
}

#endif
