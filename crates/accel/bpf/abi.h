/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * ABI between the BPF programs and src/programs/abi.rs. The build compiles it by
 * abi.bpf.c, reads the layouts out of the object's BTF, and asserts the Rust structs
 * field by field; flags and reasons come from here. Every struct and enum has a name.
 * Addresses, ports and VNIs are in network byte order.
 */
#ifndef OVERLANE_ACCEL_ABI_H
#define OVERLANE_ACCEL_ABI_H

#include "bpf.h"

enum limit {
	STALE_MS = 100, /* a heartbeat older than this sends every packet by the slow path */
	SLOTS = 512,	/* of counters */
};
#define STALE_NS (STALE_MS * 1000000ULL)

struct state {
	u64 heartbeat;	/* CLOCK_MONOTONIC, ns */
	u64 generation; /* odd while entries are rewritten */
	u64 refresh;	/* one packet of an entry per this time by the slow path, ns */
	u64 verdicts;	/* flows' verdicts with another number are void; 0: none are given */
	u32 rules;	/* generation of nftables' rules that all is by; 0: unknown */
	u32 padding;
};

/* What a copy of the programs is told when it is loaded. */
struct constants {
	u32 netns;	/* the number of the namespace that it is attached in */
	u32 tick;	/* of the kernel's jiffies, ns */
};

/* Packets are counted by reason in the slot of a device: a tenant's those that come from
 * it, a VXLAN device's those that come from the wire; those that are taken at the one
 * where they go to, too. 0: of all that have none.
 *
 * Addresses are known by domain: the ifindex of a bridge, or of a device that is
 * no port of one. An ifindex is one of a namespace: they are numbered, the NICs' is 0.
 */

/* A device. */
struct device {
	u32 netns;
	u32 ifindex;
};

/* By device: a tenant's device whose packets may be taken. */
struct port {
	u32 domain;
	u32 slot;
};

/* Where packets cross between a sandbox and the NICs' namespace, the mark says to
 * which device; it is gone behind the crossing. Nobody else's packet has one there:
 * what is sent by a veth pair into another namespace loses it (__dev_forward_skb).
 */
#define MARK_PEER 0x80000000	/* to that device's peer directly */

enum domain_flag {
	/* Of a domain: br_netfilter looks at IP headers, drops what is malformed, and hands what
	 * is bridged to IP's hooks.
	 */
	DOMAIN_CHECKED = 1,
	/* Of a VTEP over IPv6: takes datagrams without an outer checksum (RFC 6935). */
	VTEP_ZERO_CHECKSUM = 2,
	/* Of a domain: there are rules of netfilter at IP's hooks, flows want a verdict. */
	DOMAIN_RULES = 4,
	DOMAIN_RULES_IPV6 = 8,
};

struct vtep_key {
	u32 vni; /* in the first three bytes, as in the VXLAN header */
	u16 port;
	u16 ipv6; /* 1 over IPv6: the two families have sockets of their own */
};

struct vtep {
	u32 domain; /* the VXLAN device's */
	u32 nic;
	u32 netns;	/* of the domain */
	u32 crossing;	/* ifindex: the NICs' end of the veth pair to there; 0: none */
	u32 flags;	/* DOMAIN_*, VTEP_* */
	u32 vxlan;	/* ifindex */
	u32 local[4];	/* over IPv4 the first only */
	u32 slot;
	u32 pad;
};

struct mac_key {
	u32 device; /* ifindex: the domain in the FDB, the port of a source */
	u16 mac[3];
	u16 netns; /* of the device */
};

/* An address that is known at a port. */
struct source {
	u64 refreshed;
	u32 domain;
	u32 crossing; /* ifindex: this end of the veth pair to the NICs; 0: none */
	u32 flags;	/* DOMAIN_* */
	u32 slot;	/* the port's */
};

enum fdb_flag {
	FDB_LOCAL = 1,	/* behind a port of this host; else behind a remote VTEP */
	FDB_PEER = 2,	/* its device is a veth's peer in another namespace, with this address */
	FDB_CHECKSUM = 4,	/* the VXLAN device sends outer checksums */
	FDB_ROUTER_MAC = 8,	/* the host's own: packets to it are routed */
	FDB_ROUTER_MAC_IPV6 = 16,	/* those of IPv6, too */
	FDB_PROXY = 32,	/* the VXLAN device or its bridge answers solicitations */
	FDB_IPV6 = 64,	/* the underlay is IPv6 */
};

struct fdb {
	u64 refreshed_tx;
	u64 refreshed_rx;
	u32 flags;
	u32 port;	/* ifindex: the tenant's device, or the underlay NIC */
	u32 mtu;	/* largest inner layer 3 packet, bytes */
	u32 netns;	/* of the veth's peer, as the NICs' namespace numbers it */
	/* Of a remote only. */
	u32 vxlan;	/* ifindex */
	u32 vni;
	u32 remote[4];	/* over IPv4 the first only */
	u32 local[4];
	u16 udp_port;
	u16 port_min;	/* host byte order */
	u16 port_max;	/* host byte order */
	u16 frag_off;
	u8 ttl;
	u8 tos;
	u8 outer_dest[6];
	u8 outer_source[6];
	u16 pseudo;	/* sum of addresses and protocol, for the outer checksum */
	u32 label;	/* IPv6: the outer flow label, where it is in the header */
	u32 slot;	/* of the port, or of the VXLAN device */
};

enum flow_place {
	FLOW_VERDICT,	/* of the map of verdicts */
	FLOW_ENTERED,	/* seen where it comes into this host */
	FLOW_LEFT,	/* seen where it leaves, by the slow path */
};

enum flow_limit {
	FLOW_ASK_MS = 100,	/* between two questions about a flow */
	JUDGED_BITS = 20,	/* binary logarithm of the number of bits in the map judged */
};

/* A direction of a connection at a device: that of a tenant or a VXLAN device. */
struct flow_key {
	u32 netns;
	u32 device;	/* ifindex */
	u32 source[4];	/* over IPv4 the first only */
	u32 dest[4];
	u16 source_port;
	u16 dest_port;
	u8 protocol;
	u8 ipv6;
	u16 place;	/* FLOW_* */
};

enum flow_flag {
	FLOW_TRANSLATED = 1,	/* leaves with other addresses or ports */
	FLOW_UNTRACKED = 2,	/* conntrack has no entry, as rules here do not ask for it */
	FLOW_ONE_WAY = 4,	/* conntrack has seen no answer: rules see each packet as a first one */
	FLOW_YOUNG = 8,		/* answered datagrams, not assured yet; rules let both states pass */
};

/* What was found about a direction: netfilter's rules let all packets of it pass. */
struct flow {
	u64 verdict;	/* state.verdicts under which that was so */
	u64 refreshed;
	u32 flags;	/* FLOW_* */
	u32 output;	/* ifindex: of the VXLAN or the tenant's device by which it leaves */
	u32 mark;	/* of conntrack's entry */
	u32 timeout;	/* of conntrack's entry, as the slow path gave it, jiffies */
	u32 source[4];	/* as it leaves */
	u32 dest[4];
	u16 source_port;
	u16 dest_port;
	u32 status;	/* of conntrack's entry */
	u32 expires;	/* of conntrack's entry, as it was seen last, absolute jiffies */
	u32 unused;
	u64 way_back;	/* what way_back() says of a packet whose source is routed to where it came */
};

/* What is seen of a direction on the slow path. */
struct seen {
	u64 verdict;	/* state.verdicts then */
	u64 asked;	/* CLOCK_MONOTONIC, ns */
	u64 packets;	/* without a pause between them */
	u64 noted;	/* the last of them, CLOCK_MONOTONIC, ns */
};

struct count {
	u64 packets;
	u64 bytes;
};

/* Why a packet went which way; the names in capitals of `Reason` in src/model/reason.rs. */
enum reason {
	ENCAP_HIT,
	ENCAP_SHORTCUT,
	ENCAP_STALE,
	ENCAP_PORT,
	ENCAP_VLAN,
	ENCAP_MALFORMED,
	ENCAP_GROUP,
	ENCAP_PROTOCOL,
	ENCAP_SOURCE,
	ENCAP_DESTINATION,
	ENCAP_TTL,
	ENCAP_ROUTE,
	ENCAP_MTU,
	ENCAP_REFRESH,
	ENCAP_HASH,
	ENCAP_UNFIT,
	ENCAP_LOST,
	ENCAP_TRACKING,
	ENCAP_VERDICT,
	ENCAP_HALF,
	DECAP_HIT,
	DECAP_STALE,
	DECAP_NOT_OURS,
	DECAP_FRAGMENT,
	DECAP_MALFORMED,
	DECAP_GROUP,
	DECAP_PROTOCOL,
	DECAP_ECN,
	DECAP_SOURCE,
	DECAP_DESTINATION,
	DECAP_TTL,
	DECAP_ROUTE,
	DECAP_CHECKSUM,
	DECAP_GSO,
	DECAP_MTU,
	DECAP_REFRESH,
	DECAP_UNFIT,
	DECAP_LOST,
	DECAP_TRACKING,
	DECAP_VERDICT,
	DECAP_HALF,
	REASONS,
};

#endif
