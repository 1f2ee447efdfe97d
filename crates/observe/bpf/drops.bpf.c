// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts dropped packets: every skb that is freed without having been consumed, in the network
 * namespaces that user space has put into `spaces`, by namespace, device, reason and location
 * in the kernel's code.
 *
 * A GSO packet counts as the packets it stands for.
 */
#include "kernel.h"

/* ABI: 32 bytes without padding, `Key` in src/drops.rs. */
struct drop_key {
	u64 location;	/* return address of the caller that freed the skb */
	u32 netns;	/* inode of the namespace */
	u32 reason;	/* enum skb_drop_reason */
	char dev[16];	/* empty: none */
};
_Static_assert(sizeof(struct drop_key) == 32, "ABI of drop_key");
_Static_assert(__builtin_offsetof(struct drop_key, netns) == 8, "ABI of drop_key");
_Static_assert(__builtin_offsetof(struct drop_key, reason) == 12, "ABI of drop_key");
_Static_assert(__builtin_offsetof(struct drop_key, dev) == 16, "ABI of drop_key");

/* Namespaces in which drops are counted, by inode. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u32);
} spaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct drop_key);
	__type(value, u64);
} drops SEC(".maps");

/*
 * Returns 0 if the inode cannot be read. The pointer may be invalid, because the kernel uses
 * the space of skb->dev for other data while an skb is in a socket's queue.
 */
static __always_inline u32 inode_of(struct net **from)
{
	struct net *net = 0;
	u32 inode = 0;

	if (bpf_probe_read_kernel(&net, sizeof(net), from) || !net)
		return 0;
	bpf_probe_read_kernel(&inode, sizeof(inode), &net->ns.inum);
	return inode;
}

static __always_inline int counted(u32 netns)
{
	return netns && bpf_map_lookup_elem(&spaces, &netns);
}

static __always_inline int drop(struct sk_buff *skb, u64 location, u32 reason,
				struct sock *receiver)
{
	struct drop_key key = { .location = location, .reason = reason };
	struct net_device *dev = skb->dev;
	struct sock *owner = skb->sk;
	struct skb_shared_info *shared;
	u64 *count, packets = 1, none = 0;
	u16 segments = 0;

	if (skb->protocol == htons(ETH_P_ARP))
		return 0;
	if (receiver)
		key.netns = inode_of(&receiver->__sk_common.skc_net.net);
	if (!key.netns && dev) {
		key.netns = inode_of(&dev->nd_net.net);
		if (counted(key.netns))
			bpf_probe_read_kernel_str(key.dev, sizeof(key.dev), &dev->name);
		else
			key.netns = 0;
	}
	if (!key.netns && owner)
		key.netns = inode_of(&owner->__sk_common.skc_net.net);
	if (!key.netns) {
		struct dst_entry *dst =
			(struct dst_entry *)(skb->_skb_refdst & SKB_DST_PTRMASK);
		struct net_device *out = 0;

		if (dst)
			bpf_probe_read_kernel(&out, sizeof(out), &dst->dev);
		if (out)
			key.netns = inode_of(&out->nd_net.net);
	}
	if (!counted(key.netns))
		return 0;
	shared = (struct skb_shared_info *)(skb->head + skb->end);
	bpf_probe_read_kernel(&segments, sizeof(segments), &shared->gso_segs);
	if (segments > 1)
		packets = segments;
	count = bpf_map_lookup_elem(&drops, &key);
	if (!count) {
		/* If another CPU was first, its entry stays. */
		bpf_map_update_elem(&drops, &key, &none, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&drops, &key);
	}
	if (count)
		__sync_fetch_and_add(count, packets);
	return 0;
}

/* skb, location, reason, receiving socket: since Linux 6.11. */
SEC("tp_btf/kfree_skb")
int kfree_skb_of_socket(u64 *ctx)
{
	return drop(untrusted(struct sk_buff, ctx[0]), ctx[1], (u32)ctx[2],
		    untrusted(struct sock, ctx[3]));
}

/* skb, location, reason: since Linux 5.17. */
SEC("tp_btf/kfree_skb")
int kfree_skb(u64 *ctx)
{
	return drop(untrusted(struct sk_buff, ctx[0]), ctx[1], (u32)ctx[2], 0);
}
