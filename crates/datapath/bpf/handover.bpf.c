// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The uncut hand-over of the VXLAN endpoint: `send`, at the tcx ingress of its
 * second TAP, passes what user space has written on to the NIC; `receive`, at the
 * tcx ingress of the NIC, takes the tunnel's packets to that TAP. Everything else
 * goes on to the kernel's own stack, as it came, and with it the tunnel's
 * fragments, which only the stack can put together.
 */
#include "bpf.h"

static long (*const bpf_redirect_neigh)(u32 ifindex, void *params, int plen,
					u64 flags) = (void *)152;

#define PACKET_HOST 0

struct ipv6hdr {
	u32 flow;
	u16 payload_len;
	u8 nexthdr;
	u8 hop_limit;
	u32 saddr[4];
	u32 daddr[4];
};

/* ABI: set by src/vtep/handover/programs.rs before loading. Address and port are
 * in network byte order; an IPv4 address is the first word alone.
 */
struct settings {
	u32 nic;
	u32 tap;
	u32 local[4];
	u16 port;
	u16 ipv6;
};
const volatile struct settings settings SEC(".rodata") = {};

SEC("tc")
int send(struct __sk_buff *skb)
{
	/* The kernel finds the next hop's address; what nobody can be found for is
	 * dropped there, as a packet of a socket would be.
	 */
	return bpf_redirect_neigh(settings.nic, (void *)0, 0, 0);
}

static __always_inline int is_tunnels(struct __sk_buff *skb)
{
	u32 transport;
	struct udphdr udp;

	if (skb->pkt_type != PACKET_HOST || skb->vlan_present)
		return 0;
	if (settings.ipv6) {
		struct ipv6hdr ip;

		if (skb->protocol != htons(ETH_P_IPV6) ||
		    bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		/* Extension headers, a fragment's among them, are another's. */
		if (ip.nexthdr != IPPROTO_UDP || ip.daddr[0] != settings.local[0] ||
		    ip.daddr[1] != settings.local[1] || ip.daddr[2] != settings.local[2] ||
		    ip.daddr[3] != settings.local[3])
			return 0;
		transport = ETH_HLEN + sizeof(ip);
	} else {
		struct iphdr ip;

		if (skb->protocol != htons(ETH_P_IP) ||
		    bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return 0;
		if (ip.version_ihl != 0x45 || ip.frag_off & htons(0x3fff) ||
		    ip.protocol != IPPROTO_UDP || ip.daddr != settings.local[0])
			return 0;
		transport = ETH_HLEN + sizeof(ip);
	}
	return !bpf_skb_load_bytes(skb, transport, &udp, sizeof(udp)) &&
	       udp.dest == settings.port;
}

SEC("tc")
int receive(struct __sk_buff *skb)
{
	if (!is_tunnels(skb))
		return TCX_NEXT;
	return bpf_redirect(settings.tap, 0);
}
