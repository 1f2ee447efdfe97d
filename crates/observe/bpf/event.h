/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Events for user space. `src/event.rs` parses them; both assert the offsets. */
#ifndef OVERLANE_OBSERVE_EVENT_H
#define OVERLANE_OBSERVE_EVENT_H

#include "bpf.h"

/* Where in the kernel a packet was seen. */
enum kind {
	QUEUED = 0,	/* passed to a device, before its queueing discipline */
	SENT = 1,	/* passed to a device's driver */
	BACKLOG = 2,	/* queued in a CPU's backlog */
	GRO = 3,	/* about to enter GRO */
	RECEIVED = 4,	/* passed to the protocol handlers of a device */
	SOCKET = 5,	/* queued to a socket */
	READ = 6,	/* read from a socket, by the current process */
	DROPPED = 7,	/* freed as dropped; `location` is the caller */
	CONSUMED = 8,	/* freed after use */
};

/* Encapsulation of a packet. */
enum tunnel {
	NO_TUNNEL = 0,
	VXLAN = 1,
	GENEVE = 2,
	GRE = 3,
	GRE_WITH_KEY = 4,
};

/* A flow and IP headers of a packet. IPv4 addresses are mapped into IPv6. */
struct flow {
	u8 source[16];
	u8 destination[16];
	u16 source_port;	/* network byte order; 0: no ports */
	u16 destination_port;
	u8 protocol;		/* 0: no IP headers */
	u8 tcp_flags;
	u16 fragment;		/* flags and offset in the format of IPv4, network byte order */
	u32 sequence;		/* TCP, network byte order */
	u32 id;			/* IPv4, or IPv6's fragment header; network byte order */
	u16 length;		/* of the IP packet, network byte order; 0: too long for the field */
	u16 window;		/* TCP, network byte order, not scaled */
};
_Static_assert(sizeof(struct flow) == 52, "ABI of flow");
_Static_assert(__builtin_offsetof(struct flow, source_port) == 32, "ABI of flow");
_Static_assert(__builtin_offsetof(struct flow, protocol) == 36, "ABI of flow");
_Static_assert(__builtin_offsetof(struct flow, sequence) == 40, "ABI of flow");
_Static_assert(__builtin_offsetof(struct flow, length) == 48, "ABI of flow");
_Static_assert(__builtin_offsetof(struct flow, window) == 50, "ABI of flow");

struct event {
	u64 time;		/* CLOCK_MONOTONIC, ns */
	u64 skb;
	u64 location;
	u32 netns;		/* inode of the namespace; 0: unknown */
	u32 ifindex;		/* 0: no device */
	char device[16];
	u32 len;
	u32 reason;		/* enum skb_drop_reason */
	u16 gso_size;
	u16 gso_segs;
	u8 kind;
	u8 checksum;		/* ip_summed */
	u8 conntrack;		/* enum ip_conntrack_info + 1; 0: none */
	u8 tunnel;		/* enum tunnel of `outer` */
	u32 mark;
	u32 cpu;
	u32 pid;		/* READ only */
	u32 vni;		/* VNI of the tunnel, or key of GRE */
	union {
		char comm[16];	/* READ only */
		u8 macs[12];	/* DROPPED only: destination, source; 0: unknown */
	};
	struct flow inner;	/* the packet's own flow */
	struct flow outer;
};
_Static_assert(sizeof(struct event) == 200, "ABI of event");
_Static_assert(__builtin_offsetof(struct event, netns) == 24, "ABI of event");
_Static_assert(__builtin_offsetof(struct event, device) == 32, "ABI of event");
_Static_assert(__builtin_offsetof(struct event, len) == 48, "ABI of event");
_Static_assert(__builtin_offsetof(struct event, kind) == 60, "ABI of event");
_Static_assert(__builtin_offsetof(struct event, mark) == 64, "ABI of event");
_Static_assert(__builtin_offsetof(struct event, comm) == 80, "ABI of event");
_Static_assert(__builtin_offsetof(struct event, inner) == 96, "ABI of event");
_Static_assert(__builtin_offsetof(struct event, outer) == 148, "ABI of event");

/* Room for all headers of a packet in a tunnel, and for the largest payload. */
#define HEADER_BYTES 256
#define PAYLOAD_BYTES 1500
#define SNAPSHOT_BYTES 2048
_Static_assert(HEADER_BYTES + PAYLOAD_BYTES <= SNAPSHOT_BYTES, "room of a snapshot");

/* An event with the packet's first bytes, if they are wanted. */
struct snapshot {
	struct event event;
	u16 end;		/* end of the valid part of `bytes`; 0: there are none */
	u16 begin;		/* where the packet begins in them: an Ethernet header that it has
				 * not is before that */
	u32 length;		/* of the packet from `begin` on */
	u8 bytes[SNAPSHOT_BYTES];
};
_Static_assert(__builtin_offsetof(struct snapshot, end) == 200, "ABI of snapshot");
_Static_assert(__builtin_offsetof(struct snapshot, length) == 204, "ABI of snapshot");
_Static_assert(__builtin_offsetof(struct snapshot, bytes) == 208, "ABI of snapshot");

#endif
