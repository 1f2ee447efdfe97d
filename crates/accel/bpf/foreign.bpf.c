// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* Foreign programs for tests: they drop, redirect or observe packets. */
#include "bpf.h"

/* NF_DROP. */
SEC("netfilter")
int refuse(void *context)
{
	return 0;
}

/* SK_DROP. */
SEC("sk_lookup")
int choose(void *context)
{
	return 0;
}

SEC("cgroup_skb/egress")
int mute(struct __sk_buff *skb)
{
	return 0;
}

SEC("cgroup_skb/ingress")
int deafen(struct __sk_buff *skb)
{
	return 0;
}

/* XDP_PASS. */
SEC("xdp")
int look(void *context)
{
	return 2;
}

/* One hook that concerns packets, one that concerns files. */
SEC("lsm/socket_sock_rcv_skb")
int listen(void *context)
{
	return 0;
}

SEC("lsm/file_open")
int read(void *context)
{
	return 0;
}
