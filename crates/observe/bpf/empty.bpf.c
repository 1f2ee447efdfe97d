// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Empty programs at the places of `trace.bpf.c`, attached to its trace points and to the
 * functions that contain them. They measure the cost of a place without a program's own
 * work. `examples/empty_programs.rs` attaches them.
 */
#include "bpf.h"

#define EMPTY(kind, place)                                                                     \
	SEC(#kind "/" #place)                                                                  \
	int kind##_at_##place(u64 *ctx)                                                        \
	{                                                                                      \
		return 0;                                                                      \
	}

EMPTY(tp_btf, net_dev_queue)
EMPTY(tp_btf, net_dev_start_xmit)
EMPTY(tp_btf, netif_rx)
EMPTY(tp_btf, napi_gro_receive_entry)
EMPTY(tp_btf, netif_receive_skb)
EMPTY(tp_btf, skb_copy_datagram_iovec)
EMPTY(tp_btf, tcp_probe)
EMPTY(tp_btf, sk_data_ready)
EMPTY(tp_btf, consume_skb)
EMPTY(tp_btf, kfree_skb)

/*
 * In the same order. Linux 6.18 has no attachable function around netif_receive_skb, because
 * the compiler changed its arguments. Several functions call sk_data_ready; this is the one for
 * sockets without a callback of their own.
 */
EMPTY(fentry, __dev_queue_xmit)
EMPTY(fentry, dev_hard_start_xmit)
EMPTY(fentry, netif_rx_internal)
EMPTY(fentry, gro_receive_skb)
EMPTY(fentry, __netif_receive_skb_core)
EMPTY(fentry, skb_copy_datagram_iter)
EMPTY(fentry, tcp_rcv_established)
EMPTY(fentry, sock_def_readable)
EMPTY(fentry, consume_skb)
EMPTY(fentry, sk_skb_reason_drop)
