// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The bpf engine of the two-TAP bridge. At the egress of one device, a frame is redirected to
 * the ingress of the other one, in the same network namespace. With netmap, its addresses are
 * translated. Then frames other than plain TCP or UDP over IPv4 go to the device's queue, where
 * the bridge's threads handle them.
 */
#include "bpf.h"

/* include/uapi/linux/bpf.h. */
#define BPF_F_INGRESS 1
#define BPF_F_PSEUDO_HDR 0x10
#define BPF_F_MARK_MANGLED_0 0x20

static long (*const bpf_l3_csum_replace)(struct __sk_buff *skb, u32 offset, u64 from, u64 to,
					 u64 size) = (void *)10;
static long (*const bpf_l4_csum_replace)(struct __sk_buff *skb, u32 offset, u64 from, u64 to,
					 u64 flags) = (void *)11;

/* Offsets in a frame. */
#define IP_CHECK (ETH_HLEN + 10)
#define IP_ADDR (ETH_HLEN + 12)
#define TCP_CHECK (ETH_HLEN + 20 + 16)
#define UDP_CHECK (ETH_HLEN + 20 + 6)

/* ABI: set by src/tapbridge/engine/bpf.rs before loading. Addresses are in
 * network byte order.
 */
struct settings {
	u32 target;
	u32 netmap;
	u32 mask;
	u32 network[2];
};
const volatile struct settings settings SEC(".rodata") = {};

/* ABI: read by src/tapbridge/engine/bpf.rs. */
struct moved {
	u64 frames;
	u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct moved);
} moved SEC(".maps");

static __always_inline u32 translated(u32 addr)
{
	u32 network = addr & settings.mask;

	if (network == settings.network[0])
		return addr ^ network ^ settings.network[1];
	if (network == settings.network[1])
		return addr ^ network ^ settings.network[0];
	return addr;
}

/*
 * Translates a frame; returns -1 if it can be redirected, or else a verdict. A frame for user
 * space must be unchanged. A frame that is partly translated is dropped.
 */
static __always_inline int netmap(struct __sk_buff *skb)
{
	u32 check, flags, to[2];
	struct iphdr ip;

	if (skb->protocol != htons(ETH_P_IP) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
		return TC_ACT_OK;
	/* IP options or fragments: user space handles them. */
	if (ip.version_ihl != 0x45 || ip.frag_off & htons(0x3fff))
		return TC_ACT_OK;
	switch (ip.protocol) {
	case IPPROTO_TCP:
		check = TCP_CHECK;
		flags = BPF_F_PSEUDO_HDR | 4;
		break;
	case IPPROTO_UDP:
		check = UDP_CHECK;
		flags = BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0 | 4;
		break;
	default:
		return TC_ACT_OK;
	}
	to[0] = translated(ip.saddr);
	to[1] = translated(ip.daddr);
	/*
	 * If the first replacement fails, the frame has no such field and is still unchanged.
	 */
	if (bpf_l4_csum_replace(skb, check, ip.saddr, to[0], flags))
		return TC_ACT_OK;
	if (bpf_l4_csum_replace(skb, check, ip.daddr, to[1], flags) ||
	    bpf_l3_csum_replace(skb, IP_CHECK, ip.saddr, to[0], 4) ||
	    bpf_l3_csum_replace(skb, IP_CHECK, ip.daddr, to[1], 4) ||
	    bpf_skb_store_bytes(skb, IP_ADDR, to, sizeof(to), 0))
		return TC_ACT_SHOT;
	return -1;
}

SEC("tc")
int redirect(struct __sk_buff *skb)
{
	struct moved *count;
	u32 zero = 0;

	if (settings.netmap) {
		int verdict = netmap(skb);

		if (verdict >= 0)
			return verdict;
	}
	count = bpf_map_lookup_elem(&moved, &zero);
	if (count) {
		count->frames++;
		count->bytes += skb->len;
	}
	/* Clear metadata that would not survive a trip through user space. */
	skb->mark = 0;
	skb->priority = 0;
	return bpf_redirect(settings.target, BPF_F_INGRESS);
}
