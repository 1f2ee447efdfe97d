/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * ABI between the BPF programs and src/abi.rs, which writes these structs byte
 * by byte: their sizes are asserted here, and against the loaded maps there.
 * Addresses, ports and VNIs are in network byte order.
 */
#ifndef OVERLANE_ACCEL_ABI_H
#define OVERLANE_ACCEL_ABI_H

#include "bpf.h"

/* A heartbeat older than this sends every packet by the slow path, ns. */
#define STALE_NS 100000000ULL

struct state {
	u64 heartbeat;	/* CLOCK_MONOTONIC, ns */
	u64 generation; /* odd while entries are rewritten */
	u64 refresh;	/* one packet of an entry per this time by the slow path, ns */
};
_Static_assert(sizeof(struct state) == 24, "Rust writes 24 bytes");

/* Packets are counted by reason in the slot of a device: a tenant's those that come from
 * it, a VXLAN device's those that come from the wire; those that are taken at the one
 * where they go to, too. 0: of all that have none.
 */
#define SLOTS 512

/* Addresses are known by domain: the ifindex of a bridge, or of a device that is
 * no port of one. An ifindex is one of a namespace: they are numbered, the NICs' is 0.
 */

/* A device. */
struct place {
	u32 netns;
	u32 ifindex;
};
_Static_assert(sizeof(struct place) == 8, "Rust writes 8 bytes");

/* By place: a tenant's device whose packets may be taken. */
struct port {
	u32 domain;
	u32 slot;
};
_Static_assert(sizeof(struct port) == 8, "Rust writes 8 bytes");

/* Where packets cross between a sandbox and the NICs' namespace, the mark says to
 * which device; it is gone behind the crossing. Nobody else's packet has one there:
 * what is sent by a veth pair into another namespace loses it (__dev_forward_skb).
 */
#define MARK_PEER 0x80000000	/* to that device's peer directly */

/* Of a domain: br_netfilter looks at IP headers and drops what is malformed. */
#define DOMAIN_CHECKED 1
/* Of a VTEP over IPv6: takes datagrams without an outer checksum (RFC 6935). */
#define VTEP_ZERO_CHECKSUM 2

struct vtep_key {
	u32 vni; /* in the first three bytes, as in the VXLAN header */
	u16 port;
	u16 ipv6; /* 1 over IPv6: the two families have sockets of their own */
};
_Static_assert(sizeof(struct vtep_key) == 8, "Rust writes 8 bytes");

struct vtep {
	u32 domain; /* the VXLAN device's */
	u32 nic;
	u32 netns;	/* of the domain */
	u32 trampoline;	/* ifindex: the NICs' end of the veth pair to there; 0: none */
	u32 flags;	/* DOMAIN_*, VTEP_* */
	u32 vxlan;	/* ifindex */
	u32 local[4];	/* over IPv4 the first only */
	u32 slot;
	u32 pad;
};
_Static_assert(sizeof(struct vtep) == 48, "Rust writes 48 bytes");

struct mac_key {
	u32 device; /* ifindex: the domain in the FDB, the port of a source */
	u16 mac[3];
	u16 netns; /* of the device */
};
_Static_assert(sizeof(struct mac_key) == 12, "Rust writes 12 bytes");

/* An address that is known at a port. */
struct source {
	u64 refreshed;
	u32 domain;
	u32 trampoline; /* ifindex: this end of the veth pair to the NICs; 0: none */
	u32 flags;	/* DOMAIN_* */
	u32 slot;	/* the port's */
};
_Static_assert(sizeof(struct source) == 24, "Rust writes 24 bytes");

#define FDB_LOCAL 1	/* behind a port of this host; else behind a remote VTEP */
#define FDB_PEER 2	/* its device is a veth's peer in another namespace, with this address */
#define FDB_CHECKSUM 4	/* the VXLAN device sends outer checksums */
#define FDB_OWN 8	/* the host's own: packets to it are routed */
#define FDB_OWN_IPV6 16	/* those of IPv6, too */
#define FDB_PROXY 32	/* the VXLAN device answers neighbour solicitations */
#define FDB_IPV6 64	/* the underlay is IPv6 */

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
_Static_assert(sizeof(struct fdb) == 104, "Rust writes 104 bytes");

struct count {
	u64 packets;
	u64 bytes;
};

/* Why a packet went which way; in the order of `Reason` in src/reason.rs. */
enum {
	EGRESS_HIT,
	EGRESS_SHORTCUT,
	EGRESS_STALE,
	EGRESS_PORT,
	EGRESS_VLAN,
	EGRESS_MALFORMED,
	EGRESS_GROUP,
	EGRESS_PROTOCOL,
	EGRESS_SOURCE,
	EGRESS_DESTINATION,
	EGRESS_TTL,
	EGRESS_ROUTE,
	EGRESS_MTU,
	EGRESS_REFRESH,
	EGRESS_HASH,
	EGRESS_UNFIT,
	EGRESS_LOST,
	INGRESS_HIT,
	INGRESS_STALE,
	INGRESS_NOT_OURS,
	INGRESS_FRAGMENT,
	INGRESS_MALFORMED,
	INGRESS_GROUP,
	INGRESS_PROTOCOL,
	INGRESS_ECN,
	INGRESS_SOURCE,
	INGRESS_DESTINATION,
	INGRESS_TTL,
	INGRESS_ROUTE,
	INGRESS_CHECKSUM,
	INGRESS_GSO,
	INGRESS_MTU,
	INGRESS_REFRESH,
	INGRESS_UNFIT,
	INGRESS_LOST,
	REASONS,
};

#endif
