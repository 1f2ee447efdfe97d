// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Programs at the devices of one sandbox. They put the sandbox's number into the packet's control
 * block, which belongs to the programs at this hook, and continue with the programs that all
 * sandboxes share (fastpath.bpf.c). So the verifier checks the large programs once, not once per
 * sandbox.
 *
 * A tail call fails only if the process ends and the kernel has already emptied the array. The
 * packet then takes the slow path.
 */
#include "abi.h"
#include "bpf.h"

#define BPF_MAP_TYPE_PROG_ARRAY 3

static long (*const bpf_tail_call)(void *ctx, void *programs, u32 index) = (void *)12;

/* One array per hook: since Linux 6.18 an array holds programs of one attach type. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} encap_body SEC(".maps"), leave_body SEC(".maps");

const volatile struct entrance entrance = {};

SEC("tcx/ingress")
int encap(struct __sk_buff *skb)
{
	skb->cb[0] = entrance.netns;
	bpf_tail_call(skb, &encap_body, 0);
	return TCX_NEXT;
}

SEC("tcx/egress")
int leave(struct __sk_buff *skb)
{
	skb->cb[0] = entrance.netns;
	bpf_tail_call(skb, &leave_body, 0);
	return TCX_NEXT;
}
