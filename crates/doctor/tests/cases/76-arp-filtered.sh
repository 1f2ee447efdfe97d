#!/bin/sh
# 76: a filter drops ARP requests.
# Source: https://github.com/sands-lab/nika (arp acl block)
# Cause: node b drops all ARP that comes in: node a never gets its hardware address.
# Expected: "10.77.0.2, next hop to 10.77.0.2 through a nic0, does not answer".
# NIKA: arp_acl_block
# Check: OV036
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns b nft -f - <<NFT
add table arp filter
add chain arp filter input { type filter hook input priority 0; policy drop; }
NFT
ip -n "$P-a" neigh flush dev nic0
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
