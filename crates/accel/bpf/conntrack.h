/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The kernel's connection tracking as exposed to BPF programs (Linux 6.0,
 * net/netfilter/nf_conntrack_bpf.c, include/net/netfilter/nf_conntrack.h).
 */
#ifndef OVERLANE_ACCEL_CONNTRACK_H
#define OVERLANE_ACCEL_CONNTRACK_H

#include "bpf.h"

union nf_inet_addr {
	u32 all[4];
} __attribute__((preserve_access_index));

union nf_conntrack_man_proto {
	u16 all;
} __attribute__((preserve_access_index));

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			u16 all;
		} u;
	} dst;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} __attribute__((preserve_access_index));

struct ip_ct_tcp_state {
	u32 td_end;
	u32 td_maxend;
	u32 td_maxwin;
	u32 td_maxack;
	u8 td_scale;
	u8 flags;
} __attribute__((preserve_access_index));

struct ip_ct_tcp {
	struct ip_ct_tcp_state seen[2];
	u8 state;
} __attribute__((preserve_access_index));

union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
} __attribute__((preserve_access_index));

struct nf_conn {
	u32 timeout; /* jiffies */
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	u32 mark;
	union nf_conntrack_proto proto;
} __attribute__((preserve_access_index));

/* Without the last field of Linux 6.11, the direction of a zone. */
struct bpf_ct_opts {
	s32 netns_id;
	s32 error;
	u8 l4proto;
	u8 dir;
	u16 reserved;
};
_Static_assert(sizeof(struct bpf_ct_opts) == 12, "layout of Linux 6.0");

extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple,
					 u32 tuple__sz, struct bpf_ct_opts *opts, u32 opts__sz)
	__attribute__((section(".ksyms"), weak));
extern void bpf_ct_release(struct nf_conn *ct) __attribute__((section(".ksyms"), weak));
extern int bpf_ct_change_timeout(struct nf_conn *ct, u32 timeout)
	__attribute__((section(".ksyms"), weak));

/* include/uapi/linux/netfilter/nf_conntrack_common.h, IPS_*. */
#define IPS_SEEN_REPLY (1 << 1)
#define IPS_ASSURED (1 << 2)
#define IPS_CONFIRMED (1 << 3)
#define IPS_SEQ_ADJUST (1 << 6)
#define IPS_DYING (1 << 9)
#define IPS_TEMPLATE (1 << 11)
#define IPS_UNTRACKED (1 << 12)
#define IPS_HELPER (1 << 13)
#define IPS_OFFLOAD (1 << 14)
#define IPS_HW_OFFLOAD (1 << 15)
/* nf_conntrack_tcp.h. */
#define TCP_CONNTRACK_ESTABLISHED 3
#define TCP_CONNTRACK_TIME_WAIT 7
#define IP_CT_TCP_FLAG_SACK_PERM 2
#define IP_CT_TCP_FLAG_BE_LIBERAL 8
#define IP_CT_TCP_FLAG_MAXACK_SET 0x20

#endif
