// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The fast path beside a bridge or routes and their VXLAN devices.
 *
 * `encap` runs at the tcx ingress of a tenant's device and adds the outer headers. `decap`
 * (decap.h) runs at the tcx ingress of the underlay NIC and removes them. `depart` (leave.h)
 * encapsulates packets after rules have seen them. The programs learn nothing: the maps define what
 * to forward and how, and src/programs/maps.rs keeps them in step with the kernel. If anything
 * about a packet is unexpected, it passes unchanged to the bridge, routes and the VXLAN device, and
 * is counted by reason.
 *
 * If bridge and VXLAN device are in a sandbox namespace and the NIC is not (Docker's overlay
 * networks), a veth pair connects the two. `encap` and `decap` decide and change the packet.
 * `outward` and `inward`, each at the receiving end of the pair, only redirect it.
 */
#include "abi.h"
#include "kernel.h"
#include "maps.h"
#include "frame.h"
#include "outer.h"
#include "route.h"
#include "flow.h"
#include "packet.h"
#include "decap.h"
#include "leave.h"
#include "guard.h"
#include "hooks.h"

static __always_inline u32 parse_sent(struct packet *packet)
{
	struct __sk_buff *skb = packet->skb;
	struct front *front = packet->front;
	u16 proto;

	packet->live = fresh(skb, packet->now);
	if (!packet->live)
		return ENCAP_STALE;
	if (skb->vlan_present)
		return ENCAP_VLAN;
	if (load(skb, 0, &front->inner, ETH_HLEN))
		return ENCAP_MALFORMED;
	/* Group bit: the first bit on the wire. The slow path replicates frames. */
	if (*(u8 *)&front->inner.dest & 1)
		return ENCAP_GROUP;
	proto = packet->proto = front->inner.proto;
	if (skb->protocol != proto ||
	    (proto != htons(ETH_P_IP) && proto != htons(ETH_P_IPV6)))
		return ENCAP_PROTOCOL;
	if (load_ip(skb, ETH_HLEN, proto, packet->ip))
		return ENCAP_MALFORMED;
	packet->tos = inner_tos(proto, packet->ip);
	return packet->tos < 0 ? ENCAP_MALFORMED : 0;
}

/* Looks up the sender, whose entry is stored in `sender`, and the destination. */
static __always_inline u32 find_ends_sent(struct packet *packet, struct source **sender)
{
	struct __sk_buff *skb = packet->skb;
	struct mac_key key = { .device = skb->ifindex, .netns = packet->netns };
	struct source *from;

	/* The address may have moved: the bridge must learn that. */
	__builtin_memcpy(key.mac, packet->front->inner.source, 6);
	from = *sender = bpf_map_lookup_elem(&sources, &key);
	if (!from)
		return ENCAP_SOURCE;
	/*
	 * A tenant in this namespace may have marked the packet. Outer packets inherit marks, and
	 * rules were evaluated without one.
	 */
	if (skb->mark)
		return ENCAP_VERDICT;
	packet->longest =
		largest(skb, ETH_HLEN, packet->len - ETH_HLEN, packet->proto, packet->ip);
	if (!packet->longest)
		return ENCAP_MTU;
	packet->domain = from->domain;
	packet->flags = &from->flags;
	return find_destination(packet, 0, 1);
}

/* Checks that the fast path may send the packet to its destination now. */
static __always_inline u32 check_sent(struct packet *packet, struct source *from)
{
	struct fdb *to = packet->to;
	struct flow *flow = packet->flow;

	/* Through another device, other rules may apply. */
	if (to && flow && to->vxlan != flow->output)
		return ENCAP_VERDICT;
	if (!to || to->flags & (FDB_LOCAL | FDB_ROUTER_MAC))
		return ENCAP_DESTINATION;
	/*
	 * The device or bridge may answer, even unicast solicitations (drivers/net/vxlan,
	 * vxlan_xmit; net/bridge, br_do_suppress_nd).
	 */
	if (to->flags & FDB_PROXY && is_icmpv6(packet->proto, packet->ip))
		return ENCAP_PROTOCOL;
	if (packet->longest > to->mtu ||
	    is_beyond(packet->skb, packet->proto, packet->ip, packet->len, to))
		return ENCAP_MTU;
	if (due(&from->refreshed, packet->now, packet->live->refresh) |
	    due(&to->refreshed_tx, packet->now, packet->live->refresh) |
	    flow_due(flow, packet->now, packet->live))
		return ENCAP_REFRESH;
	return 0;
}

/* Translates the packet and adds the outer headers. ENCAP_SHORTCUT: the VXLAN device will. */
static __always_inline u32 rewrite_sent(struct packet *packet)
{
	struct __sk_buff *skb = packet->skb;
	struct front *front = packet->front;
	struct fdb *to = packet->to;
	struct flow *flow = packet->flow;
	int translated = 0;
	u32 hash, reason;

	if (flow && flow->flags & FLOW_TRANSLATED) {
		/* The packet is changed from here on, so the slow path cannot take it. */
		if (translate(skb, ETH_HLEN, packet->ip, packet->key, flow))
			return ENCAP_LOST;
		translated = 1;
	}
	__builtin_memcpy(front->ip, packet->ip, CHANGED);
	/* Without a flow hash, drivers/net/vxlan hashes the Ethernet header. */
	hash = bpf_get_hash_recalc(skb);
	if (!hash && !translated)
		return ENCAP_HASH;
	set_tunnel(front, to, hash, packet->len);
	if (is_sum_beyond(skb, front, packet->ip, to)) {
		/*
		 * The VXLAN device computes the checksum, and its FDB has the same entry. Only the
		 * bridge is bypassed.
		 */
		if (packet->routed &&
		    bpf_skb_store_bytes(skb, 0, &front->inner, ETH_HLEN + CHANGED, 0))
			return ENCAP_LOST;
		return ENCAP_SHORTCUT;
	}
	reason = wrap(skb, front, to, packet->tos);
	/* The packet is partly changed, so the slow path cannot take it. */
	return reason == ENCAP_UNFIT && translated ? ENCAP_LOST : reason;
}

/* Returns the counter slot of a packet with an unknown sender. The port may be unknown, too. */
static __always_inline u32 slot_of_port(const struct __sk_buff *skb, u32 *reason)
{
	struct device device = { .netns = netns_of(skb), .ifindex = skb->ifindex };
	struct port *port = bpf_map_lookup_elem(&ports, &device);

	if (!port && *reason == ENCAP_SOURCE)
		*reason = ENCAP_PORT;
	return port ? port->slot : 0;
}

SEC("tcx/ingress")
int encap(struct __sk_buff *skb)
{
	struct front front = {};
	struct flow_key key;
	u8 ip[IPV6_HLEN] __attribute__((aligned(8))) = {};
	struct packet packet = {
		.skb = skb,
		.front = &front,
		.ip = ip,
		.key = &key,
		.now = bpf_ktime_get_coarse_ns(),
		.len = skb->len,
		.start = ETH_HLEN,
		.netns = netns_of(skb),
	};
	struct source *from = 0;
	struct fdb *to;
	u32 reason, slot;
	int verdict;

	reason = parse_sent(&packet) ?: find_ends_sent(&packet, &from) ?:
		 admit(&packet, 0, skb->ifindex) ?: find_next_hop(&packet, 0) ?:
		 check_sent(&packet, from) ?: rewrite_sent(&packet);
	if (reason != ENCAP_HIT && reason != ENCAP_SHORTCUT) {
		slot = from ? from->slot : slot_of_port(skb, &reason);
		return pass_or_drop(slot, reason, packet.len, 0);
	}
	to = packet.to;
	if (reason == ENCAP_SHORTCUT) {
		verdict = bpf_redirect(to->vxlan, 0);
	} else if (from->crossing) {
		skb->mark = to->port;
		verdict = bpf_redirect_peer(from->crossing, 0);
	} else {
		verdict = bpf_redirect(to->port, 0);
	}
	count(from->slot, reason, packet.len);
	count(to->slot, reason, packet.len);
	return verdict;
}

/*
 * From a sandbox to the NIC: redirects packets sent by `encap`. Other packets do not belong on this
 * device.
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

/* Into a sandbox to the tenant: redirects packets sent by `decap`. */
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
