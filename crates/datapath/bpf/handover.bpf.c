// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Passes the VXLAN endpoint's packets between user space and the NIC without segmenting them.
 * `send`, at the tcx ingress of the second TAP, redirects packets from user space to the NIC.
 * `receive`, at the tcx ingress of the NIC, redirects the tunnel's packets to that TAP. All
 * other packets go to the kernel's own stack unchanged. So do the tunnel's fragments, because
 * only the stack can reassemble them.
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

/*
 * ABI: set by src/vtep/handover/programs.rs before loading. Address and port are in network
 * byte order. An IPv4 address is in the first word.
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
	/*
	 * The kernel resolves the address of the next hop. If that fails, it drops the packet,
	 * as it does for a socket's packet.
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
		/*
		 * Packets with extension headers, including fragments, are left to the stack.
		 */
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
