// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The fast path beside a bridge or routes and their VXLAN devices.
 *
 * `egress` runs at the tcx ingress of a tenant's device and puts the outer
 * headers on; `ingress` at the tcx ingress of the underlay NIC and takes them
 * off. Nothing is learned here: what may be forwarded, and how, is in the maps,
 * which src/maps.rs keeps in step with the kernel. A packet for which anything
 * is not as expected goes on untouched, to the bridge, routes and the VXLAN device, and
 * is counted by reason.
 *
 * Where bridge and VXLAN device are in a sandbox namespace and the NIC is not (Docker's
 * overlay networks), a veth pair joins the two: `egress` and `ingress` decide and change
 * the packet, `outward` and `inward`, each at the end of the pair that it comes out of,
 * only pass it on.
 */
#include "abi.h"
#include "kernel.h"
#include "mirror.h"
#include "frame.h"
#include "outer.h"
#include "route.h"

/* Whether this family is routed at an address of the host. */
static __always_inline u32 own_flag(u16 proto)
{
	return proto == htons(ETH_P_IP) ? FDB_OWN : FDB_OWN_IPV6;
}

SEC("tcx/ingress")
int egress(struct __sk_buff *skb)
{
	u64 now = bpf_ktime_get_coarse_ns();
	u32 ifindex = skb->ifindex, len = skb->len, hash, longest, reason;
	struct front front = {};
	struct bpf_fib_lookup way;
	struct mac_key key = { .device = ifindex, .netns = netns };
	struct state *mirror;
	struct source *from;
	struct fdb *to;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	int tos, verdict, routed = 0;
	u16 proto;

	mirror = fresh(now);
	if (!mirror)
		return pass_port(skb, EGRESS_STALE);
	if (skb->vlan_present)
		return pass_port(skb, EGRESS_VLAN);
	if (load(skb, 0, &front.inner, ETH_HLEN))
		return pass_port(skb, EGRESS_MALFORMED);
	/* Group bit: the first on the wire. Replication is the slow path's. */
	if (*(u8 *)&front.inner.dest & 1)
		return pass_port(skb, EGRESS_GROUP);
	proto = front.inner.proto;
	if (skb->protocol != proto ||
	    (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6)))
		return pass_port(skb, EGRESS_PROTOCOL);
	if (proto == htons(ETH_P_IP) ? load(skb, ETH_HLEN, ip, IP_HLEN) :
				       load(skb, ETH_HLEN, ip, IPV6_HLEN))
		return pass_port(skb, EGRESS_MALFORMED);
	tos = inner_tos(proto, ip);
	if (tos < 0)
		return pass_port(skb, EGRESS_MALFORMED);
	/* The bridge would learn an address that has moved. */
	__builtin_memcpy(key.mac, front.inner.source, 6);
	from = bpf_map_lookup_elem(&sources, &key);
	if (!from) {
		struct place place = { .netns = netns, .ifindex = ifindex };
		struct port *port = bpf_map_lookup_elem(&ports, &place);

		return pass(skb, port ? port->slot : 0, port ? EGRESS_SOURCE : EGRESS_PORT);
	}
	longest = largest(skb, ETH_HLEN, len - ETH_HLEN, proto, ip);
	if (!longest || len + OVERHEAD4 - ETH_HLEN > 0xffff)
		return pass(skb, from->slot, EGRESS_MTU);
	if (from->flags & DOMAIN_CHECKED && !is_sound(proto, ip, len - ETH_HLEN))
		return pass(skb, from->slot, EGRESS_MALFORMED);
	to = lookup(netns, from->domain, front.inner.dest);
	if (to && to->flags & FDB_OWN) {
		if (!is_plain(proto, ip, len - ETH_HLEN) || !(to->flags & own_flag(proto)))
			return pass(skb, from->slot, EGRESS_MALFORMED);
		if (hops(proto, ip) <= 1)
			return pass(skb, from->slot, EGRESS_TTL);
		if (route(skb, from->domain, proto, ip, longest, &way))
			return pass(skb, from->slot, EGRESS_ROUTE);
		to = lookup(netns, way.ifindex, way.dmac);
		/* Not to a bridge with a VXLAN device, which nothing has tested. */
		if (to && to->vxlan != way.ifindex)
			return pass(skb, from->slot, EGRESS_ROUTE);
		__builtin_memcpy(&front.inner.dest, way.dmac, 6);
		__builtin_memcpy(&front.inner.source, way.smac, 6);
		age(proto, ip);
		routed = 1;
	}
	if (!to || to->flags & (FDB_LOCAL | FDB_OWN))
		return pass(skb, from->slot, EGRESS_DESTINATION);
	/* drivers/net/vxlan, vxlan_xmit: unicast solicitations, too. */
	if (to->flags & FDB_PROXY && is_icmpv6(proto, ip))
		return pass(skb, from->slot, EGRESS_PROTOCOL);
	if (longest > to->mtu)
		return pass(skb, from->slot, EGRESS_MTU);
	if (due(&from->refreshed, now, mirror->refresh) |
	    due(&to->refreshed_tx, now, mirror->refresh))
		return pass(skb, from->slot, EGRESS_REFRESH);
	__builtin_memcpy(front.ip, ip, CHANGED);
	/* drivers/net/vxlan hashes the Ethernet header then. */
	hash = bpf_get_hash_recalc(skb);
	if (!hash)
		return pass(skb, from->slot, EGRESS_HASH);

	/* include/net/udp.h, udp_flow_src_port. */
	hash ^= hash << 16;
	front.udp.source =
		htons((((u64)hash * (to->port_max - to->port_min)) >> 32) + to->port_min);
	front.udp.dest = to->udp_port;
	front.udp.len = htons(len + 16);
	front.vxlan.flags = htonl(VXLAN_FLAGS);
	front.vxlan.vni = to->vni;
	if (to->flags & FDB_CHECKSUM) {
		/* BPF cannot ask for the checksum of each segment
		 * (SKB_GSO_UDP_TUNNEL_CSUM), nor sum up a payload: the VXLAN
		 * device does; its FDB has the same entry. Only the bridge is
		 * saved.
		 */
		if (skb->gso_size || outer_checksum(skb, &front, ip, to->pseudo)) {
			if (routed && bpf_skb_store_bytes(skb, 0, &front.inner,
							  ETH_HLEN + CHANGED, 0)) {
				count(from->slot, EGRESS_LOST, len);
				return TC_ACT_SHOT;
			}
			count(from->slot, EGRESS_SHORTCUT, len);
			count(to->slot, EGRESS_SHORTCUT, len);
			return bpf_redirect(to->vxlan, 0);
		}
	}
	/* RFC 6040, normal mode (include/net/inet_ecn.h, INET_ECN_encapsulate). */
	tos &= ECN_MASK;
	tos = to->tos | (tos == ECN_CE ? ECN_ECT_0 : tos);
	reason = to->flags & FDB_IPV6 ? wrap6(skb, &front, to, tos) :
					wrap4(skb, &front, to, tos);
	if (reason == EGRESS_UNFIT)
		return pass(skb, from->slot, EGRESS_UNFIT);
	if (reason == EGRESS_LOST) {
		count(from->slot, EGRESS_LOST, len);
		return TC_ACT_SHOT;
	}
	if (from->trampoline) {
		skb->mark = to->port;
		verdict = bpf_redirect_peer(from->trampoline, 0);
	} else {
		verdict = bpf_redirect(to->port, 0);
	}
	count(from->slot, EGRESS_HIT, len);
	count(to->slot, EGRESS_HIT, len);
	return verdict;
}

/* From a sandbox to the NIC: what `egress` has sent here. Nothing else has business
 * on this device.
 */
SEC("tcx/ingress")
int outward(struct __sk_buff *skb)
{
	u32 nic = skb->mark;

	if (!nic)
		return TC_ACT_SHOT;
	skb->mark = 0;
	return bpf_redirect(nic, 0);
}

/* Into a sandbox to the tenant: what `ingress` has sent here. */
SEC("tcx/ingress")
int inward(struct __sk_buff *skb)
{
	u32 port = skb->mark;

	if (!port)
		return TC_ACT_SHOT;
	skb->mark = 0;
	if (port & MARK_PEER)
		return bpf_redirect_peer(port & ~MARK_PEER, 0);
	return bpf_redirect(port, 0);
}

/* Whether a connection of the tenant's own takes the super-packet. Its
 * gso_type still tells of the tunnel, which BPF cannot take back; it would
 * mislead a device that the tenant forwards it to.
 */
static __always_inline int is_taken(struct __sk_buff *skb, const struct fdb *to, u16 proto,
				    const u8 *ip, u32 at)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sock;
	u32 size, listening;

	if (proto == htons(ETH_P_IP)) {
		if (ip[9] != IPPROTO_TCP || ip[0] != 0x45)
			return 0;
		__builtin_memcpy(&tuple.ipv4, ip + 12, 8);
		if (bpf_skb_load_bytes(skb, at + IP_HLEN, &tuple.ipv4.sport, 4))
			return 0;
		size = sizeof(tuple.ipv4);
	} else {
		if (ip[6] != IPPROTO_TCP)
			return 0;
		__builtin_memcpy(&tuple.ipv6, ip + 8, 32);
		if (bpf_skb_load_bytes(skb, at + IPV6_HLEN, &tuple.ipv6.sport, 4))
			return 0;
		size = sizeof(tuple.ipv6);
	}
	sock = bpf_skc_lookup_tcp(skb, &tuple, size, to->netns, 0);
	if (!sock)
		return 0;
	/* Such a socket may match an address that is not the tenant's. */
	listening = sock->state == BPF_TCP_LISTEN || sock->state == BPF_TCP_NEW_SYN_RECV;
	bpf_sk_release(sock);
	return !listening;
}

/* What comes by the NIC. `six` is a constant: each family has its own code, and pays for
 * none of the other's.
 */
static __always_inline int receive(struct __sk_buff *skb, const int six)
{
	const u32 overhead = six ? OVERHEAD6 : OVERHEAD4;
	u64 now = bpf_ktime_get_coarse_ns(), flags;
	u32 len = skb->len, summed, longest;
	struct front front;
	struct bpf_fib_lookup way;
	struct vtep_key key = { .ipv6 = six };
	struct vtep *vtep;
	struct state *mirror;
	struct fdb *from, *to;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	int tos, ecn, routed = 0;
	u16 proto;

	/* What is no VXLAN for this host is not even counted. */
	if (six ? read6(skb, &front) : read4(skb, &front))
		return TCX_NEXT;
	key.vni = front.vxlan.vni;
	key.port = front.udp.dest;
	vtep = bpf_map_lookup_elem(&vteps, &key);
	if (!vtep)
		return TCX_NEXT;
	mirror = fresh(now);
	if (!mirror)
		return pass(skb, vtep->slot, INGRESS_STALE);
	if (skb->pkt_type || skb->ifindex != vtep->nic ||
	    (six ? !is_same(front.six.ip.daddr, vtep->local) :
		   front.four.ip.daddr != vtep->local[0]))
		return pass(skb, vtep->slot, INGRESS_NOT_OURS);
	/* Of IPv6 there is another header in front of UDP then. */
	if (!six && front.four.ip.frag_off & htons(0x3fff))
		return pass(skb, vtep->slot, INGRESS_FRAGMENT);
	/* Wrong lengths, flags and sums the slow path judges; it also trims. */
	if (len - ETH_HLEN > 0xffff || front.vxlan.flags != htonl(VXLAN_FLAGS) ||
	    !(six ? is_whole6(&front, len) : is_whole4(&front, len)))
		return pass(skb, vtep->slot, INGRESS_MALFORMED);
	if (*(u8 *)&front.inner.dest & 1)
		return pass(skb, vtep->slot, INGRESS_GROUP);
	proto = front.inner.proto;
	if (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6))
		return pass(skb, vtep->slot, INGRESS_PROTOCOL);
	if (proto == htons(ETH_P_IP) ? load(skb, ETH_HLEN + overhead, ip, IP_HLEN) :
				       load(skb, ETH_HLEN + overhead, ip, IPV6_HLEN))
		return pass(skb, vtep->slot, INGRESS_MALFORMED);
	tos = inner_tos(proto, ip);
	if (tos < 0)
		return pass(skb, vtep->slot, INGRESS_MALFORMED);
	/* Congestion or ECT(1) is to be marked inside, or the packet dropped, or the
	 * oddity logged: RFC 6040, include/net/inet_ecn.h.
	 */
	ecn = (six ? class6(&front) : front.four.ip.tos) & ECN_MASK;
	tos &= ECN_MASK;
	if (ecn == ECN_CE || (ecn && !tos) || (ecn == ECN_ECT_1 && tos == ECN_ECT_0))
		return pass(skb, vtep->slot, INGRESS_ECN);
	/* The VXLAN device would learn an address that has moved. */
	from = lookup(vtep->netns, vtep->domain, front.inner.source);
	if (!from || from->flags & FDB_LOCAL || from->vxlan != vtep->vxlan ||
	    from->port != skb->ifindex ||
	    (six ? !is_same(front.six.ip.saddr, from->remote) :
		   front.four.ip.saddr != from->remote[0]))
		return pass(skb, vtep->slot, INGRESS_SOURCE);
	longest = len - overhead - ETH_HLEN;
	if (vtep->flags & DOMAIN_CHECKED && !is_sound(proto, ip, longest))
		return pass(skb, vtep->slot, INGRESS_MALFORMED);
	to = lookup(vtep->netns, vtep->domain, front.inner.dest);
	/* Only where the VXLAN device is a domain by itself: routed, not bridged. */
	if (to && to->flags & FDB_OWN && vtep->domain == from->vxlan) {
		if (!is_plain(proto, ip, longest) || !(to->flags & own_flag(proto)))
			return pass(skb, vtep->slot, INGRESS_MALFORMED);
		if (hops(proto, ip) <= 1)
			return pass(skb, vtep->slot, INGRESS_TTL);
		longest = largest(skb, ETH_HLEN + overhead, longest, proto, ip);
		if (!longest || route(skb, vtep->domain, proto, ip, longest, &way))
			return pass(skb, vtep->slot, INGRESS_ROUTE);
		to = lookup(vtep->netns, way.ifindex, way.dmac);
		__builtin_memcpy(&front.inner.dest, way.dmac, 6);
		__builtin_memcpy(&front.inner.source, way.smac, 6);
		age(proto, ip);
		routed = 1;
	}
	if (!to || !(to->flags & FDB_LOCAL))
		return pass(skb, vtep->slot, INGRESS_DESTINATION);
	summed = ip_summed(bpf_cast_to_kern_ctx(skb));
	/* The outer sum is the slow path's to check, unless done or left out; over IPv6
	 * it may be left out only where the device says so.
	 */
	if (summed == CHECKSUM_COMPLETE || (summed == CHECKSUM_NONE && front.udp.check) ||
	    (six && !front.udp.check && !(vtep->flags & VTEP_ZERO_CHECKSUM)))
		return pass(skb, vtep->slot, INGRESS_CHECKSUM);
	if (skb->gso_size) {
		if (!(to->flags & FDB_PEER) || !is_taken(skb, to, proto, ip, ETH_HLEN + overhead))
			return pass(skb, vtep->slot, INGRESS_GSO);
	} else if (longest > to->mtu) {
		return pass(skb, vtep->slot, INGRESS_MTU);
	}
	/* The tenant's neighbour entry is confirmed by the router's packets only. */
	if (due(&from->refreshed_rx, now, mirror->refresh) |
	    (routed && due(&to->refreshed_rx, now, mirror->refresh)))
		return pass(skb, vtep->slot, INGRESS_REFRESH);

	flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	if (proto == htons(ETH_P_IPV6))
		flags |= BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	else if (six)
		flags |= BPF_F_ADJ_ROOM_DECAP_L3_IPV4;
	if (bpf_skb_adjust_room(skb, -(s32)overhead, BPF_ADJ_ROOM_MAC, flags))
		return pass(skb, vtep->slot, INGRESS_UNFIT);
	__builtin_memcpy(front.ip, ip, CHANGED);
	if (bpf_skb_store_bytes(skb, 0, &front.inner, ETH_HLEN + CHANGED, 0)) {
		count(vtep->slot, INGRESS_LOST, len);
		return TC_ACT_SHOT;
	}
	/* The outer sum is verified and gone (udp4_csum_init, udp6_csum_init). */
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	/* What crosses namespaces loses both (__dev_forward_skb). */
	skb->mark = 0;
	skb->priority = 0;
	count(vtep->slot, INGRESS_HIT, len - overhead);
	count(to->slot, INGRESS_HIT, len - overhead);
	if (vtep->trampoline) {
		skb->mark = to->port | (to->flags & FDB_PEER ? MARK_PEER : 0);
		return bpf_redirect_peer(vtep->trampoline, 0);
	}
	if (to->flags & FDB_PEER)
		return bpf_redirect_peer(to->port, 0);
	return bpf_redirect(to->port, 0);
}

SEC("tcx/ingress")
int ingress(struct __sk_buff *skb)
{
	u32 proto = skb->protocol;

	if (skb->vlan_present)
		return TCX_NEXT;
	if (proto == htons(ETH_P_IP))
		return receive(skb, 0);
	if (proto == htons(ETH_P_IPV6))
		return receive(skb, 1);
	return TCX_NEXT;
}
