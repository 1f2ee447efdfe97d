/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * ABI between the BPF programs and src/programs/abi.rs. The build compiles it through abi.bpf.c,
 * reads the layouts from the object's BTF, and asserts the Rust structs field by field. Flags and
 * reasons are generated from here. Every struct and enum has a name. Addresses, ports and VNIs are
 * in network byte order.
 */
#ifndef OVERLANE_ACCEL_ABI_H
#define OVERLANE_ACCEL_ABI_H

#include "bpf.h"
#include "lock.h"

enum limit {
	STALE_MS = 100, /* an older heartbeat sends all packets to the slow path */
	SLOTS = 512,	/* number of counter slots */
	MERGE_BYTES = 1000, /* inner layer 3 length from which a segment is left to be merged */
	MERGE_MS = 20,	/* smaller segments of its flow follow it for this time */
	MERGE_FLOWS = 1024, /* a power of two */
};
#define STALE_NS (STALE_MS * 1000000ULL)

struct state {
	u64 heartbeat;	/* CLOCK_MONOTONIC, ns */
	u64 generation; /* odd while entries are rewritten */
	u64 refresh;	/* interval between an entry's slow-path packets, ns */
	u64 verdicts;	/* verdicts with another number are void; 0: none */
	u32 rules;	/* generation of nftables rules; 0: unknown */
	u32 padding;
	u64 hooks[15];	/* as in struct hook_lists */
};

/* Addresses of the lists of functions at netfilter's hooks: IPv4, IPv6, bridge; five hooks each. */
struct hook_lists {
	u64 lists[15];
};

/* Constants that the loader sets for each of the two copies of the programs. */
struct constants {
	u32 in_sandbox; /* 1: the copy for sandboxes, called by enter.bpf.c */
	u32 tick;	/* length of a jiffy, ns */
	u32 decap;	/* DECAP_* */
	u32 padding;
};

/* Constants that the loader sets for each copy of enter.bpf.c. */
struct entrance {
	u32 netns; /* number of the sandbox; 0 is the NICs' namespace */
};

/* Whether programs take the tunnel off GSO packets for every tenant. Others are for tests. */
enum decap_choice {
	DECAP_PROBE,	/* if the kernel can */
	DECAP_WITHOUT,
	DECAP_WITH,
};

/* Addresses that the loader sets for labelling.bpf.c. 0: the kernel has no such variable. */
struct symbols {
	u64 secmark;
	u64 netlabel;
	u64 ipsec;
	u64 state;
};

enum labelling_flag {
	LABELLING_PEER_CONTROLS = 1,	/* policy capability network_peer_controls */
	LABELLING_ALWAYS = 2,		/* policy capability always_check_network */
	LABELLING_POLICY = 4,		/* the policy capabilities were read */
	LABELLING_SECMARK = 8,		/* so was this count */
	LABELLING_NETLABEL = 16,
	LABELLING_IPSEC = 32,
};

/* Configuration by which SELinux decides whether to check packets. */
struct labelling {
	u32 flags;
	u32 secmark;	/* rules and objects that label packets */
	u32 netlabel;	/* domains of interpretation and static labels */
	u32 ipsec;	/* labelled policies and states */
};

/*
 * Packets are counted by reason in the slot of a device: packets from a tenant at the tenant's
 * device, packets from the wire at the VXLAN device. Accelerated packets are also counted at the
 * output device. Slot 0 is for all devices without a slot.
 *
 * Addresses belong to a domain: the ifindex of a bridge, or of a device that is not a bridge port.
 * An ifindex belongs to a namespace. Namespaces are numbered; the NICs' namespace is 0.
 */

struct device {
	u32 netns;
	u32 ifindex;
};

/* Value by device: a tenant's device whose packets may be accelerated. */
struct port {
	u32 domain;
	u32 slot;
};

/*
 * On the veth pair between a sandbox and the NICs' namespace, skb->mark holds the output device. It
 * is cleared behind the pair. No other packet carries a mark there: sending through a veth pair
 * into another namespace clears it (__dev_forward_skb).
 */
#define MARK_PEER 0x80000000	/* deliver to the device's veth peer directly */

enum domain_flag {
	/*
	 * Domain: br_netfilter checks IP headers, drops malformed packets, and passes bridged
	 * packets to the IP hooks.
	 */
	DOMAIN_CHECKED = 1,
	/* VTEP over IPv6: accepts packets without an outer checksum (RFC 6935). */
	VTEP_ZERO_CHECKSUM = 2,
	/* Domain: netfilter rules at the IP hooks, so flows need a verdict. */
	DOMAIN_RULES = 4,
	DOMAIN_RULES_IPV6 = 8,
	/* VTEP: takes GSO packets above 64 KiB, whose length fields are zero. */
	VTEP_BIG = 16,
	/* VTEP: the VXLAN device merges TCP segments (GRO), and the NIC does not. */
	VTEP_MERGES = 32,
};

struct vtep_key {
	u32 vni; /* in the first three bytes, as in the VXLAN header */
	u16 port;
	u16 ipv6; /* 1 over IPv6: each family has its own socket */
};

struct vtep {
	u32 domain; /* domain of the VXLAN device */
	u32 nic;
	u32 netns;	/* namespace of the domain */
	u32 crossing;	/* ifindex: the NICs' end of the veth pair to netns; 0: none */
	u32 flags;	/* DOMAIN_*, VTEP_* */
	u32 vxlan;	/* ifindex */
	u32 local[4];	/* IPv4: first word only */
	u32 slot;
	u32 pad;
};

struct mac_key {
	u32 device; /* ifindex: a domain (fdb) or a port (sources) */
	u16 mac[3];
	u16 netns; /* namespace of the device */
};

/* An address known at a port. */
struct source {
	u64 refreshed;
	u32 domain;
	u32 crossing; /* ifindex: this end of the veth pair to the NICs; 0: none */
	u32 flags;	/* DOMAIN_* */
	u32 slot;	/* of the port */
};

enum fdb_flag {
	FDB_LOCAL = 1,	/* behind a port of this host; otherwise a remote VTEP */
	FDB_PEER = 2,	/* a veth peer in another namespace owns the address */
	FDB_CHECKSUM = 4,	/* the VXLAN device sends outer checksums */
	FDB_ROUTER_MAC = 8,	/* the host's own address: route packets to it */
	FDB_ROUTER_MAC_IPV6 = 16,	/* route IPv6, too */
	FDB_PROXY = 32,	/* the VXLAN device or its bridge answers solicitations */
	FDB_IPV6 = 64,	/* the underlay is IPv6 */
	FDB_INNER_TOS = 128,	/* the outer DSCP is the inner one, not `tos` */
};

struct fdb {
	u64 refreshed_tx;
	u64 refreshed_rx;
	u32 flags;
	u32 port;	/* ifindex: the tenant's device, or the underlay NIC */
	u32 mtu;	/* largest inner layer 3 packet, bytes */
	u32 netns;	/* id of the veth peer's namespace in the NICs' namespace */
	/* For remote VTEPs only. */
	u32 vxlan;	/* ifindex */
	u32 vni;
	u32 remote[4];	/* IPv4: first word only */
	u32 local[4];
	u16 udp_port;
	u16 port_min;	/* host byte order */
	u16 port_max;	/* host byte order */
	u16 frag_off;
	u8 ttl;
	u8 tos;
	u8 outer_dest[6];
	u8 outer_source[6];
	u16 pseudo;	/* sum of addresses and protocol for the outer checksum */
	u32 label;	/* outer IPv6 flow label, at its place in the header */
	u32 slot;	/* of the port, or of the VXLAN device */
	/* Sizes from which GSO packets are segmented first. 0: none above 64 KiB. */
	u32 gso4;
	u32 gso6;
};

enum flow_place {
	FLOW_VERDICT,	/* key of the map of verdicts */
	FLOW_ENTERED,	/* seen at the input device */
	FLOW_LEFT,	/* seen at the output device, on the slow path */
	FLOW_TRACKED,	/* key of the map of tracked connections, without a device */
	FLOW_RESET,	/* a request: the connection was reset, so conntrack must know */
	FLOW_SYNCED,	/* a request: conntrack may have taken a new SYN and SYN/ACK for its own */
};

enum flow_limit {
	FLOW_ASK_MS = 100,	/* minimum interval between requests for a flow */
	JUDGED_BITS = 20,	/* log2 of the number of bits in the map judged */
};

/* A direction of a connection at a tenant's device or a VXLAN device. */
struct flow_key {
	u32 netns;
	u32 device;	/* ifindex */
	u32 source[4];	/* IPv4: first word only */
	u32 dest[4];
	u16 source_port;
	u16 dest_port;
	u8 protocol;
	u8 ipv6;
	u16 place;	/* FLOW_* */
};

enum flow_flag {
	FLOW_TRANSLATED = 1,	/* addresses or ports are translated */
	FLOW_UNTRACKED = 2,	/* no conntrack entry, as no rule here uses conntrack */
	FLOW_ONE_WAY = 4,	/* conntrack has seen no reply: rules see state new */
	FLOW_YOUNG = 8,		/* answered datagrams, not assured yet; rules accept both states */
	FLOW_REPLY = 16,	/* the reply direction of the conntrack entry */
};

/* Verdict on a direction: netfilter rules accept every packet of it. */
struct flow {
	u64 verdict;	/* state.verdicts when the verdict was given */
	u64 refreshed;
	u32 flags;	/* FLOW_* */
	u32 output;	/* ifindex of the output device */
	u32 mark;	/* of the conntrack entry */
	u32 timeout;	/* of the conntrack entry, as set by the slow path, jiffies */
	u32 source[4];	/* addresses and ports of packets as they leave */
	u32 dest[4];
	u16 source_port;
	u16 dest_port;
	u32 status;	/* of the conntrack entry */
	u32 expires;	/* of the conntrack entry when last seen, absolute jiffies */
	u32 connection;	/* TCP: index in `connections` */
	u32 serial;	/* of the connection */
	u32 unused;
	u64 way_back;	/* way_back() of a packet that passed the reverse route check */
};

enum connection_state {
	CONNECTION_NONE,	/* unknown, or left to conntrack */
	CONNECTION_WANTED,	/* the windows are to be copied from conntrack */
	CONNECTION_COPIED,	/* copied; not compared with conntrack yet */
	CONNECTION_TRACKED,	/* equal to those of conntrack, which still sees all packets */
	CONNECTION_FAST,	/* packets bypass conntrack, which accepts any sequence number */
	CONNECTION_RESET,	/* reset by a segment that conntrack would have taken as a reset */
};

enum connection_flag {
	CONNECTION_NUDGE = 1,	/* the next packet must renew the timeout of conntrack's entry */
	CONNECTION_FIN = 2,	/* a side has sent all of its data */
	CONNECTION_SYN = 4,	/* `syn_end` is that of the last SYN */
	CONNECTION_SYNCED = 8,	/* the reply side has acknowledged that SYN */
	CONNECTION_NOTED = 16,	/* conntrack has seen no segment since that SYN */
};

/* The last segment that conntrack would have noted (last_index). */
enum connection_last {
	LAST_OTHER,
	LAST_ACK,	/* none of SYN, FIN, RST; `last_end` is set */
	LAST_SYN,	/* of the original direction, amid the connection */
	LAST_FIN,
	LAST_RST,
};

/* A direction's window as conntrack tracks it (struct ip_ct_tcp_state), host byte order. */
struct window {
	u32 end;	/* behind the last byte sent */
	u32 maxend;	/* behind the last byte that the receiver has room for */
	u32 maxwin;	/* largest window announced */
	u32 maxack;	/* largest acknowledgement sent */
	u16 scale;	/* of windows that it announces */
	u16 sack;	/* whether it may send selective acknowledgements to */
};

/*
 * A TCP connection with verdicts: conntrack's windows, continued for the packets that bypass it.
 * seen[1] is the reply direction.
 */
struct connection {
	struct bpf_spin_lock lock;
	u32 serial;	/* of this use of the index */
	u32 state;	/* CONNECTION_* */
	u32 last;	/* direction of the last segment */
	u64 copied;	/* time of the last copy, or FLOW_SYNCED, CLOCK_MONOTONIC, ns */
	struct window seen[2];
	u32 last_end;	/* behind the last byte of the last LAST_ACK */
	u32 flags;	/* CONNECTION_* */
	u32 syn_end;	/* behind the number of a SYN amid the connection */
	u32 last_kind;	/* LAST_* */
};

/* Value by direction: a connection in `connections`. */
struct tracked {
	u32 connection;
	u32 reply;	/* 1: this is the reply direction */
};

/* Packets of a direction seen on the slow path. */
struct seen {
	u64 verdict;	/* state.verdicts at that time */
	u64 asked;	/* time of the last request, CLOCK_MONOTONIC, ns */
	u64 packets;	/* recorded packets since the last pause */
	u64 noted;	/* time of the last one, CLOCK_MONOTONIC, ns */
};

struct count {
	u64 packets;
	u64 bytes;
};

/* Outcomes of packets. The names match `Reason` in src/model/reason.rs. */
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
	DECAP_MERGE,
	DECAP_MTU,
	DECAP_REFRESH,
	DECAP_UNFIT,
	DECAP_LOST,
	DECAP_TRACKING,
	DECAP_VERDICT,
	DECAP_HALF,
	GUARD_DROP,
	REASONS,
};

#endif
