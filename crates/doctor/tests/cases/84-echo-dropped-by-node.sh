#!/bin/sh
# 84: a node drops pings of its pods.
# Source: https://github.com/sands-lab/nika (icmp acl block)
# Cause: a rule of node b drops forwarded ICMP.
# Expected: "drops ICMP echo requests from cni0 to flannel.1".
# NIKA: icmp_acl_block
# Check: OV073
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns b nft -f - <<NFT
add table ip filter
add chain ip filter FORWARD { type filter hook forward priority 0; policy accept; }
add rule ip filter FORWARD meta l4proto icmp counter drop
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
