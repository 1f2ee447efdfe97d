#!/bin/sh
# 83: a pod drops pings.
# Source: https://github.com/sands-lab/nika (icmp acl block)
# Cause: a rule in pod-b drops ICMP echo requests.
# Expected: "drops incoming ICMP echo requests to 10.244.2.2".
# NIKA: icmp_acl_block
# Check: OV098
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns pod-b nft -f - <<NFT
add table ip filter
add chain ip filter INPUT { type filter hook input priority 0; policy accept; }
add rule ip filter INPUT icmp type echo-request counter drop
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
