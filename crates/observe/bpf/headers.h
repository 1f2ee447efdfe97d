/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Headers of a packet: where they are in the kernel's memory, its addresses and ports, and those
 * of the packet inside of a tunnel.
 */
#ifndef OVERLANE_OBSERVE_HEADERS_H
#define OVERLANE_OBSERVE_HEADERS_H

#include "kernel.h"
#include "event.h"
#include "filter.h"

#define VXLAN_HEADERS 8
#define VXLAN_HAS_VNI 0x08
#define ETH_P_8021Q 0x8100
#define VLAN_HLEN 4
#define ARP_BYTES 28
#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58

/* Where headers are. It lies in a map, and is read back from there by `read_back`. */
struct headers {
	u64 ip;
	/* Where the packet's memory may begin and ends. */
	u64 frame;
	u64 end;
	/* Bytes of them all, from `ip` on. */
	u32 length;
	/* Where a tunnel's inner frame begins, from `ip` on; 0: it is in none. */
	u32 inner;
	/* Bytes of the link's header before `ip`. */
	u32 link;
};

/* A number that the verifier takes for any: it would follow each length of headers by itself,
 * through all that comes after.
 */
static __always_inline u32 read_back(const volatile u32 *number)
{
	return *number;
}

/* The same of an address, which it takes for a pointer. */
static __always_inline u64 address_back(const volatile u64 *address)
{
	return *address;
}

struct ipv6hdr {
	u32 head;
	u16 length;
	u8 next;
	u8 hops;
	u8 source[16];
	u8 destination[16];
};

/* Ports and what of TCP is told: the first bytes of the transport header. */
#define TRANSPORT_BYTES 14

static __always_inline void read_transport(struct flow *flow, const u8 *bytes)
{
	__builtin_memcpy(&flow->source_port, bytes, 2);
	__builtin_memcpy(&flow->destination_port, bytes + 2, 2);
	if (flow->protocol == IPPROTO_TCP) {
		__builtin_memcpy(&flow->sequence, bytes + 4, 4);
		flow->tcp_flags = bytes[13];
	}
}

/* Bytes of a transport header. */
static __always_inline u32 transport_length(u8 protocol, const u8 *bytes)
{
	switch (protocol) {
	case IPPROTO_TCP:
		/* In words of 32 bits; less than 5 is no header. */
		return (bytes[12] >> 4) * 4 < 20 ? 20 : (bytes[12] >> 4) * 4;
	case IPPROTO_UDP:
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return 8;
	default:
		return 0;
	}
}

/* Bytes of the headers of the IP packet at `at`, whose addresses and ports could be read, or 0;
 * `payload` is where that of UDP begins, or 0. One read does for headers without options: a
 * packet's memory is longer than its headers.
 */
static __always_inline u32 read_flow(struct flow *flow, const u8 *at, const u8 **payload)
{
	u8 head[sizeof(struct ipv6hdr) + TRANSPORT_BYTES];
	const struct ipv6hdr *six = (const void *)head;
	const struct iphdr *four = (const void *)head;
	u32 length = sizeof(*six);

	*payload = 0;
	if (bpf_probe_read_kernel(head, sizeof(head), at))
		return 0;
	if (head[0] >> 4 == 4 && (head[0] & 15) >= 5) {
		length = (head[0] & 15) * 4;
		flow->source[10] = flow->source[11] = 0xff;
		__builtin_memcpy(flow->source + 12, &four->saddr, 4);
		flow->destination[10] = flow->destination[11] = 0xff;
		__builtin_memcpy(flow->destination + 12, &four->daddr, 4);
		flow->protocol = four->protocol;
		flow->id = four->id;
		flow->fragment = four->frag_off;
		flow->length = four->tot_len;
		/* Only a first fragment has ports. */
		if (four->frag_off & htons(0x1fff))
			return length;
	} else if (head[0] >> 4 == 6) {
		__builtin_memcpy(flow->source, six->source, 16);
		__builtin_memcpy(flow->destination, six->destination, 16);
		flow->protocol = six->next;
		flow->length = six->length;
	} else {
		return 0;
	}
	if (flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP)
		return length + transport_length(flow->protocol, head);
	if (flow->protocol == IPPROTO_UDP)
		*payload = at + length + 8;
	if (length == sizeof(*four)) {
		read_transport(flow, head + sizeof(*four));
		length += transport_length(flow->protocol, head + sizeof(*four));
	} else if (length == sizeof(*six)) {
		read_transport(flow, head + sizeof(*six));
		length += transport_length(flow->protocol, head + sizeof(*six));
	} else {
		u8 rest[TRANSPORT_BYTES];

		if (bpf_probe_read_kernel(rest, sizeof(rest), at + length)) {
			*payload = 0;
			return length;
		}
		read_transport(flow, rest);
		length += transport_length(flow->protocol, rest);
	}
	return length;
}

/* Reads the headers of the packet whose IP header is at `at`: in a tunnel those of the inner
 * one, too.
 */
static __always_inline int read_headers(struct event *event, struct headers *headers, const u8 *at)
{
	const u8 *payload, *inside;
	u8 vxlan[VXLAN_HEADERS + ETH_HLEN];

	__builtin_memset(&event->inner, 0, sizeof(event->inner));
	headers->ip = (u64)at;
	headers->length = read_flow(&event->inner, at, &payload);
	headers->inner = 0;
	if (!headers->length)
		return 0;
	if (!payload || !bpf_map_lookup_elem(&tunnels, &event->inner.destination_port) ||
	    bpf_probe_read_kernel(vxlan, sizeof(vxlan), payload) || !(vxlan[0] & VXLAN_HAS_VNI))
		return 1;
	event->outer = event->inner;
	event->tunnel = 1;
	event->vni = vxlan[4] << 16 | vxlan[5] << 8 | vxlan[6];
	__builtin_memset(&event->inner, 0, sizeof(event->inner));
	headers->inner = headers->length + VXLAN_HEADERS;
	headers->length = headers->inner + ETH_HLEN;
	/* ARP and others have no addresses that a filter names. */
	headers->length += read_flow(&event->inner, payload + sizeof(vxlan), &inside);
	if (vxlan[20] == ETH_P_ARP >> 8 && vxlan[21] == (ETH_P_ARP & 0xff))
		headers->length += ARP_BYTES;
	return 1;
}

/* Where the IP header is, of a frame that begins at `frame`. */
static __always_inline const u8 *behind_ethernet(const u8 *frame)
{
	u16 type = 0;

	bpf_probe_read_kernel(&type, sizeof(type), frame + 12);
	return frame + ETH_HLEN + (type == htons(ETH_P_8021Q) ? VLAN_HLEN : 0);
}

#endif
