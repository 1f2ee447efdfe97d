/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Kernel interfaces for BPF programs beyond bpf.h: helpers, their flags, the kernel's view of a
 * packet.
 */
#ifndef OVERLANE_ACCEL_KERNEL_H
#define OVERLANE_ACCEL_KERNEL_H

#include "bpf.h"
#include "untrusted.h"

/*
 * A global function: the verifier checks it once, with any arguments, not once for each state in
 * which it is called. That halves the time to load the programs.
 */
#define __verified_once __attribute__((noinline))

/* include/uapi/linux/bpf.h. */
#define BPF_F_NO_PREALLOC 1
#define BPF_ADJ_ROOM_MAC 1
#define BPF_F_ADJ_ROOM_FIXED_GSO (1ULL << 0)
#define BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 (1ULL << 1)
#define BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 (1ULL << 2)
#define BPF_F_ADJ_ROOM_ENCAP_L4_UDP (1ULL << 4)
#define BPF_F_ADJ_ROOM_NO_CSUM_RESET (1ULL << 5)
#define BPF_F_ADJ_ROOM_ENCAP_L2(len) ((u64)(len) << 56)
#define BPF_F_ADJ_ROOM_ENCAP_L2_ETH (1ULL << 6)
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
#define BPF_CSUM_LEVEL_DEC 2
/* Linux 7.3. Earlier kernels have no such value, and their flags have no type. */
enum bpf_adj_room_flags {
	BPF_F_ADJ_ROOM_DECAP_L4_UDP = 1ULL << 10,
};
#define BPF_F_INGRESS 1
#define BPF_TCP_LISTEN 10
#define BPF_TCP_NEW_SYN_RECV 12

struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
	u32 mark;
	u32 priority;
	u32 src_ip4;
	u32 src_ip6[4];
	u32 src_port;
	u16 dst_port;
	u16 : 16;
	u32 dst_ip4;
	u32 dst_ip6[4];
	u32 state;
};

struct bpf_sock_tuple {
	union {
		struct {
			u32 saddr;
			u32 daddr;
			u16 sport;
			u16 dport;
		} ipv4;
		struct {
			u32 saddr[4];
			u32 daddr[4];
			u16 sport;
			u16 dport;
		} ipv6;
	};
};

static u32 (*const bpf_get_hash_recalc)(struct __sk_buff *skb) = (void *)34;
static long (*const bpf_skb_adjust_room)(struct __sk_buff *skb, s32 len_diff, u32 mode,
					 u64 flags) = (void *)50;
static long (*const bpf_sk_release)(void *sock) = (void *)86;
static struct bpf_sock *(*const bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple,
						     u32 size, u64 netns,
						     u64 flags) = (void *)99;
static long (*const bpf_csum_level)(struct __sk_buff *skb, u64 level) = (void *)135;
static long (*const bpf_redirect_peer)(u32 ifindex, u64 flags) = (void *)155;
static u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;

/*
 * Generation of a namespace's nftables rules (Linux 6.17). Earlier kernels store it where BPF
 * cannot read it.
 */
struct netns_nftables {
	u32 base_seq;
} __attribute__((preserve_access_index));

/*
 * Generation of a namespace's IPv4 routes, rules, addresses and links. Sockets compare it to
 * validate cached routes (include/net/net_namespace.h, rt_genid_ipv4).
 */
struct netns_ipv4 {
	struct {
		s32 counter;
	} rt_genid;
} __attribute__((preserve_access_index));

/*
 * Functions at netfilter's hooks. The kernel replaces a hook's list when a function comes or goes
 * (net/netfilter/core.c, __nf_register_net_hook, nf_remove_net_hook).
 */
#define NF_HOOKS 5
struct nf_hook_entries;
struct netns_nf {
	struct nf_hook_entries *hooks_ipv4[NF_HOOKS];
	struct nf_hook_entries *hooks_ipv6[NF_HOOKS];
	struct nf_hook_entries *hooks_bridge[NF_HOOKS];
} __attribute__((preserve_access_index));

/* Whether conntrack verifies checksums (net.netfilter.nf_conntrack_checksum). */
struct netns_ct {
	u8 sysctl_checksum;
} __attribute__((preserve_access_index));

struct net {
	struct netns_nftables nft;
	struct netns_ipv4 ipv4;
	struct netns_nf nf;
	struct netns_ct ct;
} __attribute__((preserve_access_index));

struct nsproxy {
	struct net *net_ns;
} __attribute__((preserve_access_index));

struct task_struct {
	struct nsproxy *nsproxy;
} __attribute__((preserve_access_index));

struct net_device {
	struct {
		struct net *net;
	} nd_net;
} __attribute__((preserve_access_index));

/* The kernel's view of the packet (Linux 6.2), because no helper reports the checksum's state. */
struct sk_buff {
	struct net_device *dev;
	u32 len;
	u8 ip_summed : 2;
	u8 csum_level : 2;
	u16 csum_start;
	u16 csum_offset;
	u16 mac_header;
} __attribute__((preserve_access_index));
extern void *bpf_cast_to_kern_ctx(void *ctx) __attribute__((section(".ksyms")));

/* The namespace that the packet is in. */
static __always_inline const struct net *net_of(struct __sk_buff *skb)
{
	const struct sk_buff *kernel = untrusted(struct sk_buff, bpf_cast_to_kern_ctx(skb));

	return kernel->dev->nd_net.net;
}

/*
 * Whether the nftables rules of a namespace have this generation; true if unknown. A
 * change takes effect with the next generation, before the system call returns
 * (net/netfilter/nf_tables_api.c, nf_tables_commit).
 */
static __always_inline int rules_are(const struct net *net, u32 generation)
{
	/* bpf_core_field_exists(). */
	if (!__builtin_preserve_field_info(((struct net *)0)->nft.base_seq, 2))
		return 1;
	return net->nft.base_seq == generation;
}

/*
 * Whether a namespace's lists of functions at hooks are these, as `hook_lists` (hooks.h) gave them.
 * Keeps clang from merging comparisons, which may only be those of a pointer with a number.
 */
static __always_inline int lists_are(const struct net *net, const u64 *lists)
{
	u64 list;

	/* bpf_core_field_exists(): the kernel has no netfilter. */
	if (!__builtin_preserve_field_info(((struct net *)0)->nf.hooks_ipv4, 2))
		return 1;
#define LIST_IS(family, hook, at)                                                                 \
	list = (u64)net->nf.hooks_##family[hook];                                                 \
	asm volatile("" : "+r"(list));                                                            \
	if (list != lists[at])                                                                    \
		return 0;
#define LISTS_ARE(family, at)                                                                     \
	LIST_IS(family, 0, at)                                                                    \
	LIST_IS(family, 1, at + 1)                                                                \
	LIST_IS(family, 2, at + 2)                                                                \
	LIST_IS(family, 3, at + 3)                                                                \
	LIST_IS(family, 4, at + 4)
	LISTS_ARE(ipv4, 0)
	LISTS_ARE(ipv6, NF_HOOKS)
	if (__builtin_preserve_field_info(((struct net *)0)->nf.hooks_bridge, 2)) {
		LISTS_ARE(bridge, 2 * NF_HOOKS)
	}
#undef LISTS_ARE
#undef LIST_IS
	return 1;
}

static __always_inline u32 routes_of(struct __sk_buff *skb)
{
	return net_of(skb)->ipv4.rt_genid.counter;
}

/* include/linux/skbuff.h. */
#define CHECKSUM_NONE 0
#define CHECKSUM_UNNECESSARY 1
#define CHECKSUM_COMPLETE 2
#define CHECKSUM_PARTIAL 3

/* Reads a bit field of a packet by offset, size and shifts that CO-RE relocates. */
#define READ_BITS(skb, field)                                                                     \
	({                                                                                        \
		const void *place =                                                               \
			(const void *)(skb) + __builtin_preserve_field_info((skb)->field, 0);     \
		u64 value = 0;                                                                    \
                                                                                                  \
		asm volatile("" : "=r"(place) : "0"(place));                                      \
		switch (__builtin_preserve_field_info((skb)->field, 1)) {                         \
		case 1:                                                                           \
			value = *(const u8 *)place;                                               \
			break;                                                                    \
		case 2:                                                                           \
			value = *(const u16 *)place;                                              \
			break;                                                                    \
		case 4:                                                                           \
			value = *(const u32 *)place;                                              \
			break;                                                                    \
		case 8:                                                                           \
			value = *(const u64 *)place;                                              \
			break;                                                                    \
		}                                                                                 \
		value <<= __builtin_preserve_field_info((skb)->field, 4);                         \
		value >> __builtin_preserve_field_info((skb)->field, 5);                          \
	})

static __always_inline u32 ip_summed(const struct sk_buff *skb)
{
	return READ_BITS(skb, ip_summed);
}

#endif
