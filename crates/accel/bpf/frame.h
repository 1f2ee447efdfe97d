/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packet headers: wire formats, reading, lengths, checksums. */
#ifndef OVERLANE_ACCEL_FRAME_H
#define OVERLANE_ACCEL_FRAME_H

#include "kernel.h"

#define IPPROTO_ICMPV6 58
#define IP_HLEN 20
#define IPV6_HLEN 40
/* Overhead of encapsulation: outer IP, UDP, VXLAN (RFC 7348), inner Ethernet. */
#define OVERHEAD4 50
#define OVERHEAD6 70
#define ECN_MASK 3
#define ECN_CE 3
#define ECN_ECT_0 2
#define ECN_ECT_1 1

struct ethhdr {
	u16 dest[3];
	u16 source[3];
	u16 proto;
} __attribute__((packed));

struct vxlanhdr {
	u32 flags;
	u32 vni; /* the VNI uses the first three bytes */
} __attribute__((packed));

struct ipv6hdr {
	u32 flow; /* version, traffic class, flow label */
	u16 payload_len;
	u8 nexthdr;
	u8 hop_limit;
	u32 saddr[4];
	u32 daddr[4];
} __attribute__((packed));

/* Part of the inner IP header that a router changes, rounded up to 8 bytes. */
#define CHANGED 16

/*
 * Front part of a packet. Behind the outer IP header, both families have the same layout, and the
 * IPv4 headers are aligned for copies of 8 bytes.
 */
struct front {
	union {
		struct {
			u8 unused[24];
			struct ethhdr eth;
			struct iphdr ip;
		} __attribute__((packed)) four;
		struct {
			u8 unused[4];
			struct ethhdr eth;
			struct ipv6hdr ip;
		} __attribute__((packed)) six;
	};
	struct udphdr udp;
	struct vxlanhdr vxlan;
	struct ethhdr inner;
	u8 ip[CHANGED];
} __attribute__((packed, aligned(8)));
_Static_assert(sizeof(struct front) == 24 + ETH_HLEN + OVERHEAD4 + CHANGED,
	       "written to the packet unchanged");
_Static_assert(sizeof(struct front) == 4 + ETH_HLEN + OVERHEAD6 + CHANGED,
	       "written to the packet unchanged");

/*
 * Reads bytes of the packet. Reads the linear part, which usually holds the headers, without a
 * helper call. The kernel permits unaligned reads where they are cheap, so the claimed alignment
 * need not hold.
 */
static __always_inline int load(const struct __sk_buff *skb, u32 at, void *to, u32 len)
{
	const u8 *data = (const u8 *)(long)skb->data;

	if (data + at + len > (const u8 *)(long)skb->data_end)
		return bpf_skb_load_bytes(skb, at, to, len);
	__builtin_memcpy(to, __builtin_assume_aligned(data + at, 8), len);
	return 0;
}

/*
 * Returns the value of a length field of an IP or UDP header. In GSO packets above 64 KiB (BIG TCP)
 * it is zero (include/linux/ip.h, iph_set_totlen; include/linux/ipv6.h, ipv6_set_payload_len;
 * include/linux/udp.h, udp_set_len).
 */
static __always_inline u16 length_field(u32 len)
{
	return len > 0xffff ? 0 : htons(len);
}

/* Reads the IP header at `at`. `ip` has room for an IPv6 header. */
static __always_inline int load_ip(const struct __sk_buff *skb, u32 at, u16 proto, u8 *ip)
{
	return proto == htons(ETH_P_IP) ? load(skb, at, ip, IP_HLEN) : load(skb, at, ip, IPV6_HLEN);
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

/* Returns the inner packet's DSCP and ECN, or -1 if the header is malformed. */
static __always_inline int inner_tos(u16 proto, const u8 *ip)
{
	if (proto == htons(ETH_P_IP))
		return ip[0] >> 4 == 4 ? ip[1] : -1;
	return ip[0] >> 4 == 6 ? (ip[0] << 4 | ip[1] >> 4) & 0xff : -1;
}

/*
 * Returns the header length of one segment of a GSO packet, from the IP header at `start` on. 0:
 * unknown.
 */
static __always_inline u32 segment_headers(struct __sk_buff *skb, u32 start, u16 proto,
					   const u8 *ip)
{
	u32 length, at, protocol, protocol4 = ip[9], protocol6 = ip[6];
	u8 offset;

	/* Otherwise clang computes the load address in a way that the verifier rejects. */
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
	/* Extension headers would change the length. */
	at = start + length + 12;
	if (protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, at, &offset, 1))
		return 0;
	return length + (offset >> 4) * 4;
}

/*
 * Returns the layer 3 length, for a GSO packet that of its largest segment: gso_size is payload
 * only. 0: unknown.
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

/*
 * Computes the outer UDP checksum without reading the payload, if the inner checksum is left to the
 * device (include/net/udp_tunnel.h, lco_csum). Fails in cases that the kernel computes otherwise.
 */
static __always_inline int outer_checksum(struct __sk_buff *skb, struct front *front,
					  const u8 *ip, u32 pseudo)
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
	sum += add(&front->udp, (8 + 8 + ETH_HLEN) / 2);
	sum += pseudo + front->udp.len;
	inner = ~fold(sum);
	front->udp.check = inner ? inner : 0xffff;
	return 0;
}

/* Whether the transport protocol is TCP, without extension headers before it. */
static __always_inline int is_tcp(u16 proto, const u8 *ip)
{
	u32 protocol4 = ip[9], protocol6 = ip[6];

	/* Keep clang from merging the loads, see segment_headers(). */
	asm volatile("" : "+r"(protocol4), "+r"(protocol6));
	return (proto == htons(ETH_P_IP) ? protocol4 : protocol6) == IPPROTO_TCP;
}

static __always_inline int is_icmpv6(u16 proto, const u8 *ip)
{
	u32 next = ip[6];

	/* Keep clang from merging the loads, see segment_headers(). */
	asm volatile("" : "+r"(next));
	return proto == htons(ETH_P_IPV6) && next == IPPROTO_ICMPV6;
}

#endif
