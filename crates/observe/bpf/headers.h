/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Finds and parses the headers of a packet in the kernel's memory, including those of the inner
 * packet of a tunnel.
 */
#ifndef OVERLANE_OBSERVE_HEADERS_H
#define OVERLANE_OBSERVE_HEADERS_H

#include "kernel.h"
#include "event.h"
#include "filter.h"

/* Lengths of base headers. Geneve's options follow, and GRE's optional fields by its flags. */
#define VXLAN_HEADER 8
#define VXLAN_HAS_VNI 0x08
#define GENEVE_HEADER 8
#define GENEVE_VERSION 0xc0
#define GENEVE_OPTION_WORDS 0x3f
#define GRE_HEADER 4
/* The flag 0x80 adds a checksum before the key, 0x10 a sequence number after it. */
#define GRE_KEY 0x20
/* In the second byte. */
#define GRE_VERSION 0x07
#define ETH_P_TEB 0x6558
#define IPPROTO_GRE 47
#define ETH_P_8021Q 0x8100
#define VLAN_HLEN 4
#define ARP_BYTES 28
#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58
/* Headers between IPv6's and the transport header (RFC 8200, section 4; RFC 4302). */
#define IPPROTO_HOPOPTS 0
#define IPPROTO_ROUTING 43
#define IPPROTO_FRAGMENT 44
#define IPPROTO_AH 51
#define IPPROTO_DSTOPTS 60
/* Maximum number of extension headers that are skipped. */
#define EXTENSIONS 6
/* Bits of `fragment`: more fragments follow, and the offset in units of 8 bytes. */
#define MORE_FRAGMENTS 0x2000
#define FRAGMENT_OFFSET 0x1fff

/* Positions of headers. It is stored in a map, and read with `read_back`. */
struct headers {
	u64 ip;
	/* Where the packet's memory may begin, and where it ends. */
	u64 frame;
	u64 end;
	/* Length of all headers, starting at `ip`. */
	u32 length;
	/* Offset of a tunnel's inner frame from `ip`; 0: no inner frame. */
	u32 inner;
	/* Length of the link header before `ip`. */
	u32 link;
	/* Length of a tunnel's own header and the inner link header. */
	u32 tunnel;
	/* The payload of UDP or GRE; 0: it cannot be a tunnel. */
	u64 payload;
	/* EtherType of an inner frame, network byte order. */
	u16 type;
	/* Whether the packet is checked only as a later fragment. */
	u32 is_fragment_wanted;
	/* Whether it is a later fragment of a packet whose first fragment was stored. */
	u32 is_followed;
};

/*
 * Returns a number that the verifier treats as unknown. Otherwise it would follow every
 * possible length of headers separately through all later code.
 */
static __always_inline u32 read_back(const volatile u32 *number)
{
	return *number;
}

/* The same for an address, which the verifier would treat as a pointer. */
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

/* Ports and TCP fields are in the first bytes of the transport header. */
#define TRANSPORT_BYTES 16

static __always_inline void read_transport(struct flow *flow, const u8 *bytes)
{
	__builtin_memcpy(&flow->source_port, bytes, 2);
	__builtin_memcpy(&flow->destination_port, bytes + 2, 2);
	if (flow->protocol == IPPROTO_TCP) {
		__builtin_memcpy(&flow->sequence, bytes + 4, 4);
		flow->tcp_flags = bytes[13];
		__builtin_memcpy(&flow->window, bytes + 14, 2);
	}
}

/* Returns the length of a transport header. */
static __always_inline u32 transport_length(u8 protocol, const u8 *bytes)
{
	switch (protocol) {
	case IPPROTO_TCP:
		/* In words of 32 bits; less than 5 is invalid. */
		return (bytes[12] >> 4) * 4 < 20 ? 20 : (bytes[12] >> 4) * 4;
	case IPPROTO_UDP:
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return 8;
	default:
		return 0;
	}
}

/*
 * Result for extension headers, in one number: their length, the offset of the fragment header
 * in them plus 1 (0: there is none), its flags and offset in the format of IPv4, and the
 * protocol of the next header after all extensions.
 */
#define EXTENSIONS_LENGTH(found) ((u32)(found) & 0xffff)
#define EXTENSIONS_FRAGMENT(found) ((u32)(found) >> 16)
#define EXTENSIONS_PLACE(found) ((u16)((found) >> 32))
#define EXTENSIONS_PROTOCOL(found) ((u8)((found) >> 48))

/*
 * Parses the extension headers at the address `at`; `first` is the protocol number of the first
 * one. After the fragment header of a later fragment, everything is payload. The function takes
 * numbers and is not static, so that the verifier checks it once and not for each caller.
 */
__attribute__((noinline)) u64 read_extensions(u64 at, u32 first)
{
	u8 head[4] __attribute__((aligned(4)));
	u32 length = 0, fragment = 0, place = 0;
	u8 protocol = first;

	for (u32 count = 0; count < EXTENSIONS; count++) {
		u8 of = protocol;

		if (of != IPPROTO_HOPOPTS && of != IPPROTO_ROUTING && of != IPPROTO_FRAGMENT &&
		    of != IPPROTO_AH && of != IPPROTO_DSTOPTS)
			break;
		if (bpf_probe_read_kernel(head, sizeof(head), (const void *)(at + length)))
			break;
		protocol = head[0];
		if (of == IPPROTO_FRAGMENT) {
			place = head[2] << 8 | head[3];
			fragment = length + 1;
			length += 8;
			/* The offset precedes two unused bits and the flag. */
			if (place >> 3)
				break;
		} else if (of == IPPROTO_AH) {
			length += (head[1] + 2) * 4;
		} else {
			length += (head[1] + 1) * 8;
		}
	}
	place = place >> 3 | (place & 1 ? MORE_FRAGMENTS : 0);
	return (u64)protocol << 48 | (u64)place << 32 | (fragment & 0xffff) << 16 |
	       (length & 0xffff);
}

/*
 * Parses the IP packet at `at`; returns the length of its headers, or 0 if they cannot be read.
 * `payload` is set to the payload of UDP or GRE, or to 0. One read suffices for headers without
 * options, because a packet's memory is longer than its headers. It is not inlined: the
 * verifier compares states where a call returns, and so needs half the steps for the callers.
 */
static __attribute__((noinline)) u32 read_flow(struct flow *flow, const u8 *at, const u8 **payload)
{
	u8 head[sizeof(struct ipv6hdr) + TRANSPORT_BYTES] __attribute__((aligned(8)));
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
		flow->id = htonl(htons(four->id));
		flow->fragment = four->frag_off;
		flow->length = four->tot_len;
	} else if (head[0] >> 4 == 6) {
		__builtin_memcpy(flow->source, six->source, 16);
		__builtin_memcpy(flow->destination, six->destination, 16);
		flow->protocol = six->next;
		flow->length = six->length;
		if (flow->protocol != IPPROTO_TCP && flow->protocol != IPPROTO_UDP) {
			u64 behind = (u64)(at + sizeof(*six)), found;

			/* Read it back, because the verifier treats it as a pointer. */
			bpf_probe_read_kernel(&behind, sizeof(behind), &behind);
			found = read_extensions(behind, flow->protocol);
			flow->protocol = EXTENSIONS_PROTOCOL(found);
			flow->fragment = htons(EXTENSIONS_PLACE(found));
			if (EXTENSIONS_FRAGMENT(found))
				bpf_probe_read_kernel(&flow->id, sizeof(flow->id),
						      (const u8 *)behind + 3 +
							      EXTENSIONS_FRAGMENT(found));
			length += EXTENSIONS_LENGTH(found);
		}
	} else {
		return 0;
	}
	/* Only a first fragment has ports. */
	if (flow->fragment & htons(FRAGMENT_OFFSET))
		return length;
	if (flow->protocol == IPPROTO_GRE)
		*payload = at + length;
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
		/* Reuse the buffer: callers and callees share 512 bytes of stack. */
		if (bpf_probe_read_kernel(head, TRANSPORT_BYTES, at + length)) {
			*payload = 0;
			return length;
		}
		read_transport(flow, head);
		length += transport_length(flow->protocol, head);
	}
	return length;
}

/*
 * Parses the header of a tunnel. Its kind and VNI go to the event, its length and the offset of
 * the inner frame to `headers`. The event's `tunnel` stays NO_TUNNEL if the tunnel carries
 * neither Ethernet nor IP.
 */
static __always_inline void read_tunnel(struct event *event, struct headers *headers, const u8 *at)
{
	u32 protocol, flags, length;
	u8 head[8] __attribute__((aligned(8))), kind;
	u16 *known;

	if (bpf_probe_read_kernel(head, sizeof(head), at))
		return;
	flags = head[0];
	protocol = head[2] << 8 | head[3];
	if (event->inner.protocol == IPPROTO_GRE) {
		u32 key = GRE_HEADER + (flags >> 5 & 4);

		/* Version 1 is used by PPTP. */
		if (head[1] & GRE_VERSION)
			return;
		/* Checksum, key and sequence number have four bytes each. */
		length = key + (flags >> 3 & 4) + (flags >> 2 & 4);
		kind = GRE + (flags >> 5 & 1);
		bpf_probe_read_kernel(head + 4, 4, at + key);
		event->vni = (u32)head[4] << 24 | head[5] << 16 | head[6] << 8 | head[7];
	} else {
		known = bpf_map_lookup_elem(&tunnels, &event->inner.destination_port);
		if (!known)
			return;
		kind = *known;
		event->vni = head[4] << 16 | head[5] << 8 | head[6];
		length = VXLAN_HEADER;
		if (kind == GENEVE) {
			if (flags & GENEVE_VERSION)
				return;
			length = GENEVE_HEADER + (flags & GENEVE_OPTION_WORDS) * 4;
		} else {
			if (!(flags & VXLAN_HAS_VNI))
				return;
			protocol = ETH_P_TEB;
		}
	}
	headers->tunnel = length;
	if (protocol == ETH_P_TEB) {
		length = read_back(&headers->tunnel);
		headers->inner = read_back(&headers->length) + length;
		headers->tunnel = length + ETH_HLEN;
		bpf_probe_read_kernel(&headers->type, sizeof(headers->type),
				      at + length + ETH_HLEN - 2);
	} else if (protocol != ETH_P_IP && protocol != ETH_P_IPV6) {
		return;
	}
	event->tunnel = kind;
}

/* Returns an address as a number, which the verifier passes to functions that are not static. */
static __always_inline u64 number(struct headers *headers, const u8 *at)
{
	headers->ip = (u64)at;
	return address_back(&headers->ip);
}

/*
 * Returns the event of the packet that a program looks at, and its headers, by the event's index
 * on this CPU (drafts.h).
 */
static __always_inline struct event *current_event(u32 at, struct headers **headers);

/*
 * Parses the headers of the packet whose IP header is at the address `ip`, and those of the
 * inner packet of a tunnel, into the `current_event`. The function takes numbers and is not
 * static, so that the verifier checks it once per program and not for each path to it.
 */
__attribute__((noinline)) int read_headers(u64 ip, u32 draft)
{
	const u8 *at = (const u8 *)ip, *payload, *inside;
	struct headers *headers;
	struct event *event = current_event(draft, &headers);
	u32 length;

	if (!event)
		return 0;
	__builtin_memset(&event->inner, 0, sizeof(event->inner));
	headers->ip = (u64)at;
	headers->inner = 0;
	headers->type = 0;
	headers->length = read_flow(&event->inner, at, &payload);
	headers->payload = (u64)payload;
	if (!read_back(&headers->length))
		return 0;
	payload = (const u8 *)address_back(&headers->payload);
	if (!payload)
		return 1;
	read_tunnel(event, headers, payload);
	if (!*(volatile u8 *)&event->tunnel)
		return 1;
	event->outer = event->inner;
	__builtin_memset(&event->inner, 0, sizeof(event->inner));
	length = read_back(&headers->tunnel);
	headers->length += length;
	length = read_flow(&event->inner, payload + length, &inside);
	/*
	 * Other protocols than IP have no addresses that a filter could name. ARP consists of a
	 * header only.
	 */
	if (!length && headers->type == htons(ETH_P_ARP))
		length = ARP_BYTES;
	headers->length += length;
	return 1;
}

/* Whether the headers in `current_event` match the filter; checked once, as `read_headers`. */
__attribute__((noinline)) int is_read_wanted(u32 draft)
{
	u32 zero = 0;
	struct headers *headers;
	struct event *event = current_event(draft, &headers);
	const struct filter *filter = bpf_map_lookup_elem(&filters, &zero);

	return event && filter && is_wanted(filter, event);
}

/* Returns the IP header of a frame that begins at `frame`. */
static __always_inline const u8 *behind_ethernet(const u8 *frame)
{
	u16 type = 0;

	bpf_probe_read_kernel(&type, sizeof(type), frame + 12);
	return frame + ETH_HLEN + (type == htons(ETH_P_8021Q) ? VLAN_HLEN : 0);
}

#endif
