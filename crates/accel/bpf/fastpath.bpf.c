// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The fast path beside a bridge or routes and their VXLAN devices.
 *
 * `encap` runs at the tcx ingress of a tenant's device and puts the outer
 * headers on; `decap` at the tcx ingress of the underlay NIC and takes them
 * off. Nothing is learned here: what may be forwarded, and how, is in the maps,
 * which src/programs/maps.rs keeps in step with the kernel. A packet for which anything
 * is not as expected goes on untouched, to the bridge, routes and the VXLAN device, and
 * is counted by reason.
 *
 * Where bridge and VXLAN device are in a sandbox namespace and the NIC is not (Docker's
 * overlay networks), a veth pair joins the two: `encap` and `decap` decide and change
 * the packet, `outward` and `inward`, each at the end of the pair that it comes out of,
 * only pass it on.
 */
#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "frame.h"
#include "outer.h"
#include "route.h"
#include "flow.h"

/* Whether this family is routed at an address of the host. */
static __always_inline u32 router_flag(u16 proto)
{
	return proto == htons(ETH_P_IP) ? FDB_ROUTER_MAC : FDB_ROUTER_MAC_IPV6;
}

/* Whether packets of this family come to rules: routed ones, and with br_netfilter those that
 * cross the bridge.
 */
static __always_inline int comes_to_rules(u32 domain, u16 proto, int routed)
{
	u32 rules = proto == htons(ETH_P_IP) ? DOMAIN_RULES : DOMAIN_RULES_IPV6;

	return domain & rules && (routed || domain & DOMAIN_CHECKED);
}

SEC("tcx/ingress")
int encap(struct __sk_buff *skb)
{
	u64 now = bpf_ktime_get_coarse_ns();
	u32 ifindex = skb->ifindex, len = skb->len, hash, longest, reason;
	struct front front = {};
	struct bpf_fib_lookup fib;
	struct mac_key key = { .device = ifindex, .netns = constants.netns };
	struct state *live;
	struct source *from;
	struct fdb *to;
	struct flow *flow = 0;
	struct flow_key key_of_flow;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	int tos, verdict, routed = 0, translated = 0;
	u16 proto;

	live = fresh(skb, now);
	if (!live)
		return pass_port(skb, ENCAP_STALE);
	if (skb->vlan_present)
		return pass_port(skb, ENCAP_VLAN);
	if (load(skb, 0, &front.inner, ETH_HLEN))
		return pass_port(skb, ENCAP_MALFORMED);
	/* Group bit: the first on the wire. Replication is the slow path's. */
	if (*(u8 *)&front.inner.dest & 1)
		return pass_port(skb, ENCAP_GROUP);
	proto = front.inner.proto;
	if (skb->protocol != proto ||
	    (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6)))
		return pass_port(skb, ENCAP_PROTOCOL);
	if (proto == htons(ETH_P_IP) ? load(skb, ETH_HLEN, ip, IP_HLEN) :
				       load(skb, ETH_HLEN, ip, IPV6_HLEN))
		return pass_port(skb, ENCAP_MALFORMED);
	tos = inner_tos(proto, ip);
	if (tos < 0)
		return pass_port(skb, ENCAP_MALFORMED);
	/* The bridge would learn an address that has moved. */
	__builtin_memcpy(key.mac, front.inner.source, 6);
	from = bpf_map_lookup_elem(&sources, &key);
	if (!from) {
		struct device device = { .netns = constants.netns, .ifindex = ifindex };
		struct port *port = bpf_map_lookup_elem(&ports, &device);

		return pass(skb, port ? port->slot : 0, port ? ENCAP_SOURCE : ENCAP_PORT);
	}
	longest = largest(skb, ETH_HLEN, len - ETH_HLEN, proto, ip);
	if (!longest || len + OVERHEAD4 - ETH_HLEN > 0xffff)
		return pass(skb, from->slot, ENCAP_MTU);
	if (from->flags & DOMAIN_CHECKED && !is_sound(proto, ip, len - ETH_HLEN))
		return pass(skb, from->slot, ENCAP_MALFORMED);
	to = lookup(constants.netns, from->domain, front.inner.dest);
	if (to && to->flags & FDB_ROUTER_MAC) {
		if (!is_plain(proto, ip, len - ETH_HLEN) || !(to->flags & router_flag(proto)))
			return pass(skb, from->slot, ENCAP_MALFORMED);
		if (hops(proto, ip) <= 1)
			return pass(skb, from->slot, ENCAP_TTL);
		routed = 1;
	}
	if (to && !(to->flags & FDB_LOCAL) && comes_to_rules(from->flags, proto, routed)) {
		if (flow_of(skb, ETH_HLEN, proto, ip, ifindex, &key_of_flow))
			return pass(skb, from->slot, ENCAP_TRACKING);
		flow = verdict_of(skb, &key_of_flow, live);
		if (!flow) {
			entered(&key_of_flow, live, now, 1);
			return pass(skb, from->slot, ENCAP_VERDICT);
		}
		/* The connection may have come to another state, for which it wants
		 * another verdict.
		 */
		if (!is_tracked(skb, &key_of_flow, flow)) {
			entered(&key_of_flow, live, now, 1);
			return pass(skb, from->slot, ENCAP_TRACKING);
		}
		set_dest(ip, flow, key_of_flow.ipv6);
	}
	if (routed) {
		if (route(skb, from->domain, proto, ip, longest, &fib))
			return pass(skb, from->slot, ENCAP_ROUTE);
		to = lookup(constants.netns, fib.ifindex, fib.dmac);
		/* Not to a bridge with a VXLAN device, which nothing has tested. */
		if (to && to->vxlan != fib.ifindex)
			return pass(skb, from->slot, ENCAP_ROUTE);
		__builtin_memcpy(&front.inner.dest, fib.dmac, 6);
		__builtin_memcpy(&front.inner.source, fib.smac, 6);
		age(proto, ip);
	}
	/* By another device other rules may stop it. */
	if (to && flow && to->vxlan != flow->output)
		return pass(skb, from->slot, ENCAP_VERDICT);
	if (!to || to->flags & (FDB_LOCAL | FDB_ROUTER_MAC))
		return pass(skb, from->slot, ENCAP_DESTINATION);
	/* drivers/net/vxlan, vxlan_xmit; net/bridge, br_do_suppress_nd: unicast
	 * solicitations, too.
	 */
	if (to->flags & FDB_PROXY && is_icmpv6(proto, ip))
		return pass(skb, from->slot, ENCAP_PROTOCOL);
	if (longest > to->mtu)
		return pass(skb, from->slot, ENCAP_MTU);
	if (due(&from->refreshed, now, live->refresh) |
	    due(&to->refreshed_tx, now, live->refresh) |
	    flow_due(flow, now, live))
		return pass(skb, from->slot, ENCAP_REFRESH);
	if (flow && flow->flags & FLOW_TRANSLATED) {
		/* From here on the packet is another: it goes fast or nowhere. */
		if (translate(skb, ETH_HLEN, ip, &key_of_flow, flow)) {
			count(from->slot, ENCAP_LOST, len);
			return TC_ACT_SHOT;
		}
		translated = 1;
	}
	__builtin_memcpy(front.ip, ip, CHANGED);
	/* drivers/net/vxlan hashes the Ethernet header then. */
	hash = bpf_get_hash_recalc(skb);
	if (!hash && !translated)
		return pass(skb, from->slot, ENCAP_HASH);

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
				count(from->slot, ENCAP_LOST, len);
				return TC_ACT_SHOT;
			}
			count(from->slot, ENCAP_SHORTCUT, len);
			count(to->slot, ENCAP_SHORTCUT, len);
			return bpf_redirect(to->vxlan, 0);
		}
	}
	/* RFC 6040, normal mode (include/net/inet_ecn.h, INET_ECN_encapsulate). */
	tos &= ECN_MASK;
	tos = to->tos | (tos == ECN_CE ? ECN_ECT_0 : tos);
	reason = to->flags & FDB_IPV6 ? wrap6(skb, &front, to, tos) :
					wrap4(skb, &front, to, tos);
	if (reason == ENCAP_UNFIT && !translated)
		return pass(skb, from->slot, ENCAP_UNFIT);
	if (reason != ENCAP_HIT) {
		count(from->slot, ENCAP_LOST, len);
		return TC_ACT_SHOT;
	}
	if (from->crossing) {
		skb->mark = to->port;
		verdict = bpf_redirect_peer(from->crossing, 0);
	} else {
		verdict = bpf_redirect(to->port, 0);
	}
	count(from->slot, ENCAP_HIT, len);
	count(to->slot, ENCAP_HIT, len);
	return verdict;
}

/* From a sandbox to the NIC: what `encap` has sent here. Nothing else has business
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

/* Into a sandbox to the tenant: what `decap` has sent here. */
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

/* Whether a connection of the tenant's own takes the GSO packet. Its
 * gso_type still tells of the tunnel, which BPF cannot take back; it would
 * mislead a device that the tenant forwards it to.
 */
static __always_inline int is_taken(struct __sk_buff *skb, const struct fdb *to, u16 proto,
				    const u8 *ip, u32 at, const struct flow *flow)
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
	/* As it will come to the tenant. */
	if (flow && proto == htons(ETH_P_IP)) {
		tuple.ipv4.saddr = flow->source[0];
		tuple.ipv4.daddr = flow->dest[0];
		__builtin_memcpy(&tuple.ipv4.sport, &flow->source_port, 4);
	} else if (flow) {
		__builtin_memcpy(tuple.ipv6.saddr, flow->source, 16);
		__builtin_memcpy(tuple.ipv6.daddr, flow->dest, 16);
		__builtin_memcpy(&tuple.ipv6.sport, &flow->source_port, 4);
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
	struct bpf_fib_lookup fib;
	struct vtep_key key = { .ipv6 = six };
	struct vtep *vtep;
	struct state *live;
	struct fdb *from, *to;
	struct flow *flow = 0;
	struct flow_key key_of_flow;
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
	live = fresh(skb, now);
	if (!live)
		return pass(skb, vtep->slot, DECAP_STALE);
	if (skb->pkt_type || skb->ifindex != vtep->nic ||
	    (six ? !is_same(front.six.ip.daddr, vtep->local) :
		   front.four.ip.daddr != vtep->local[0]))
		return pass(skb, vtep->slot, DECAP_NOT_OURS);
	/* Of IPv6 there is another header in front of UDP then. */
	if (!six && front.four.ip.frag_off & htons(0x3fff))
		return pass(skb, vtep->slot, DECAP_FRAGMENT);
	/* Wrong lengths, flags and sums the slow path judges; it also trims. */
	if (len - ETH_HLEN > 0xffff || front.vxlan.flags != htonl(VXLAN_FLAGS) ||
	    !(six ? is_whole6(&front, len) : is_whole4(&front, len)))
		return pass(skb, vtep->slot, DECAP_MALFORMED);
	if (*(u8 *)&front.inner.dest & 1)
		return pass(skb, vtep->slot, DECAP_GROUP);
	proto = front.inner.proto;
	if (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6))
		return pass(skb, vtep->slot, DECAP_PROTOCOL);
	if (proto == htons(ETH_P_IP) ? load(skb, ETH_HLEN + overhead, ip, IP_HLEN) :
				       load(skb, ETH_HLEN + overhead, ip, IPV6_HLEN))
		return pass(skb, vtep->slot, DECAP_MALFORMED);
	tos = inner_tos(proto, ip);
	if (tos < 0)
		return pass(skb, vtep->slot, DECAP_MALFORMED);
	/* Congestion or ECT(1) is to be marked inside, or the packet dropped, or the
	 * oddity logged: RFC 6040, include/net/inet_ecn.h.
	 */
	ecn = (six ? class6(&front) : front.four.ip.tos) & ECN_MASK;
	tos &= ECN_MASK;
	if (ecn == ECN_CE || (ecn && !tos) || (ecn == ECN_ECT_1 && tos == ECN_ECT_0))
		return pass(skb, vtep->slot, DECAP_ECN);
	/* The VXLAN device would learn an address that has moved. */
	from = lookup(vtep->netns, vtep->domain, front.inner.source);
	if (!from || from->flags & FDB_LOCAL || from->vxlan != vtep->vxlan ||
	    from->port != skb->ifindex ||
	    (six ? !is_same(front.six.ip.saddr, from->remote) :
		   front.four.ip.saddr != from->remote[0]))
		return pass(skb, vtep->slot, DECAP_SOURCE);
	longest = len - overhead - ETH_HLEN;
	if (vtep->flags & DOMAIN_CHECKED && !is_sound(proto, ip, longest))
		return pass(skb, vtep->slot, DECAP_MALFORMED);
	to = lookup(vtep->netns, vtep->domain, front.inner.dest);
	/* Only where the VXLAN device is a domain by itself: routed, not bridged. */
	if (to && to->flags & FDB_ROUTER_MAC && vtep->domain == from->vxlan) {
		if (!is_plain(proto, ip, longest) || !(to->flags & router_flag(proto)))
			return pass(skb, vtep->slot, DECAP_MALFORMED);
		if (hops(proto, ip) <= 1)
			return pass(skb, vtep->slot, DECAP_TTL);
		longest = largest(skb, ETH_HLEN + overhead, longest, proto, ip);
		if (!longest)
			return pass(skb, vtep->slot, DECAP_ROUTE);
		routed = 1;
	}
	if (to && (routed || to->flags & FDB_LOCAL) && comes_to_rules(vtep->flags, proto, routed)) {
		if (flow_of(skb, ETH_HLEN + overhead, proto, ip, vtep->vxlan, &key_of_flow))
			return pass(skb, vtep->slot, DECAP_TRACKING);
		flow = verdict_of(skb, &key_of_flow, live);
		if (!flow) {
			entered(&key_of_flow, live, now, asks_at_tunnel(&key_of_flow));
			return pass(skb, vtep->slot, DECAP_VERDICT);
		}
		if (!is_tracked(skb, &key_of_flow, flow)) {
			entered(&key_of_flow, live, now, asks_at_tunnel(&key_of_flow));
			return pass(skb, vtep->slot, DECAP_TRACKING);
		}
		set_dest(ip, flow, key_of_flow.ipv6);
	}
	if (routed) {
		if (route(skb, vtep->domain, proto, ip, longest, &fib))
			return pass(skb, vtep->slot, DECAP_ROUTE);
		to = lookup(vtep->netns, fib.ifindex, fib.dmac);
		__builtin_memcpy(&front.inner.dest, fib.dmac, 6);
		__builtin_memcpy(&front.inner.source, fib.smac, 6);
		age(proto, ip);
	}
	if (to && flow && to->port != flow->output)
		return pass(skb, vtep->slot, DECAP_VERDICT);
	if (!to || !(to->flags & FDB_LOCAL))
		return pass(skb, vtep->slot, DECAP_DESTINATION);
	summed = ip_summed(bpf_cast_to_kern_ctx(skb));
	/* The outer sum is the slow path's to check, unless done or left out; over IPv6
	 * it may be left out only where the device says so.
	 */
	if (summed == CHECKSUM_COMPLETE || (summed == CHECKSUM_NONE && front.udp.check) ||
	    (six && !front.udp.check && !(vtep->flags & VTEP_ZERO_CHECKSUM)))
		return pass(skb, vtep->slot, DECAP_CHECKSUM);
	if (skb->gso_size) {
		if (!(to->flags & FDB_PEER) || !is_taken(skb, to, proto, ip, ETH_HLEN + overhead, flow))
			return pass(skb, vtep->slot, DECAP_GSO);
	} else if (longest > to->mtu) {
		return pass(skb, vtep->slot, DECAP_MTU);
	}
	/* The tenant's neighbour entry is confirmed by the router's packets only. */
	if (due(&from->refreshed_rx, now, live->refresh) |
	    (routed && due(&to->refreshed_rx, now, live->refresh)) |
	    flow_due(flow, now, live))
		return pass(skb, vtep->slot, DECAP_REFRESH);

	flags = BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET;
	if (proto == htons(ETH_P_IPV6))
		flags |= BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	else if (six)
		flags |= BPF_F_ADJ_ROOM_DECAP_L3_IPV4;
	if (bpf_skb_adjust_room(skb, -(s32)overhead, BPF_ADJ_ROOM_MAC, flags))
		return pass(skb, vtep->slot, DECAP_UNFIT);
	__builtin_memcpy(front.ip, ip, CHANGED);
	if (bpf_skb_store_bytes(skb, 0, &front.inner, ETH_HLEN + CHANGED, 0)) {
		count(vtep->slot, DECAP_LOST, len);
		return TC_ACT_SHOT;
	}
	/* The outer sum is verified and gone (udp4_csum_init, udp6_csum_init). */
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC);
	if (flow && flow->flags & FLOW_TRANSLATED &&
	    translate(skb, ETH_HLEN, ip, &key_of_flow, flow)) {
		count(vtep->slot, DECAP_LOST, len);
		return TC_ACT_SHOT;
	}
	/* What crosses namespaces loses both (__dev_forward_skb). */
	skb->mark = 0;
	skb->priority = 0;
	count(vtep->slot, DECAP_HIT, len - overhead);
	count(to->slot, DECAP_HIT, len - overhead);
	if (vtep->crossing) {
		skb->mark = to->port | (to->flags & FDB_PEER ? MARK_PEER : 0);
		return bpf_redirect_peer(vtep->crossing, 0);
	}
	if (to->flags & FDB_PEER)
		return bpf_redirect_peer(to->port, 0);
	return bpf_redirect(to->port, 0);
}

SEC("tcx/ingress")
int decap(struct __sk_buff *skb)
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

/* Where packets leave this host's rules, by the slow path: at the tcx egress of a VXLAN
 * device and of a tenant's device. Only looks.
 */
SEC("tcx/egress")
int leave(struct __sk_buff *skb)
{
	struct state *live = fresh(skb, bpf_ktime_get_coarse_ns());
	struct flow_key key;
	struct ethhdr eth;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};

	if (!live || !live->verdicts || load(skb, 0, &eth, ETH_HLEN))
		return TCX_NEXT;
	if (eth.proto != htons(ETH_P_IP) && eth.proto != htons(ETH_P_IPV6))
		return TCX_NEXT;
	if (eth.proto == htons(ETH_P_IP) ? load(skb, ETH_HLEN, ip, IP_HLEN) :
					   load(skb, ETH_HLEN, ip, IPV6_HLEN))
		return TCX_NEXT;
	if (is_noted(eth.proto == htons(ETH_P_IP) ? ip[9] : ip[6]) &&
	    !flow_of(skb, ETH_HLEN, eth.proto, ip, skb->ifindex, &key))
		see(&key, FLOW_LEFT, live);
	return TCX_NEXT;
}
