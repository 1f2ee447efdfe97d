#!/bin/sh
# 79: a wire damages packets.
# Source: https://github.com/sands-lab/nika (link packet corruption)
# Cause: the switch changes a byte of every packet from node a; each arrives with a wrong checksum.
# Expected: "Icmp InCsumErrors +2".
# NIKA: link_packet_corruption
# Check: OV009
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns sw nft -f - <<NFT
add table netdev wire
add chain netdev wire in { type filter hook ingress device p-a priority 0; }
add rule netdev wire in meta length > 400 @th,800,8 set 0x5a
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.2 -s 600 10.244.2.2
echo "$0: $DO is there"
