/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The fields of kernel structs that are read here (CO-RE finds their offsets), and the helpers
 * of tracing programs.
 */
#ifndef OVERLANE_OBSERVE_KERNEL_H
#define OVERLANE_OBSERVE_KERNEL_H

#include "bpf.h"
#include "untrusted.h"

/* include/uapi/linux/bpf.h. */
#define BPF_MAP_TYPE_LRU_PERCPU_HASH 10
#define BPF_NOEXIST 1
#define BPF_RB_NO_WAKEUP 1
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static u64 (*const bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*const bpf_get_current_comm)(void *buffer, u32 size) = (void *)16;
static long (*const bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const bpf_probe_read_kernel_str)(void *to, u32 size,
					       const void *from) = (void *)115;
static long (*const bpf_ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static void *(*const bpf_ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*const bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;

#define __core __attribute__((preserve_access_index))
struct sk_buff;
struct ns_common {
	unsigned int inum;
} __core;
struct net {
	struct ns_common ns;
} __core;
typedef struct {
	struct net *net;
} possible_net_t;
struct net_device {
	char name[16];
	int ifindex;
	possible_net_t nd_net;
} __core;
struct sock_common {
	u16 skc_num;
	possible_net_t skc_net;
} __core;
struct sk_buff_head {
	struct sk_buff *prev;
} __core;
struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
} __core;
struct dst_entry {
	struct net_device *dev;
} __core;
struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	struct sock *sk;
	unsigned long _skb_refdst;
	unsigned long _nfct;
	u32 len;
	u8 ip_summed : 2;
	u32 mark;
	u16 protocol;
	u16 transport_header;
	u16 network_header;
	u16 mac_header;
	u32 tail;
	u32 end;
	unsigned char *head;
	unsigned char *data;
} __core;
struct skb_shared_info {
	u16 gso_size;
	u16 gso_segs;
} __core;

/* dst_entry pointers carry a flag in their lowest bit (SKB_DST_NOREF). */
#define SKB_DST_PTRMASK (~1UL)
/* Bits of `_nfct`: the connection's state for this packet (NFCT_INFOMASK). */
#define NFCT_INFOMASK 7UL

/* enum bpf_field_info_kind, of clang. */
#define BPF_FIELD_BYTE_OFFSET 0
#define BPF_FIELD_LSHIFT_U64 4
#define BPF_FIELD_RSHIFT_U64 5

/* Reads a bit field within one byte, at its position in this kernel. */
#define bits_of(from, field)                                                                   \
	({                                                                                     \
		u8 __byte = 0;                                                                 \
		u64 __value;                                                                   \
		bpf_probe_read_kernel(&__byte, 1,                                              \
				      (const char *)(from) +                                   \
					      __builtin_preserve_field_info(                   \
						      (from)->field, BPF_FIELD_BYTE_OFFSET));  \
		__value = __byte;                                                              \
		__value <<= __builtin_preserve_field_info((from)->field,                       \
							  BPF_FIELD_LSHIFT_U64);               \
		__value >> __builtin_preserve_field_info((from)->field,                        \
							 BPF_FIELD_RSHIFT_U64);                \
	})

#endif
