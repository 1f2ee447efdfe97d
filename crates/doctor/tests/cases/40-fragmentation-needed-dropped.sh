#!/bin/sh
# 40: a filter drops ICMP "fragmentation needed".
# Source: https://github.com/sands-lab/nika (ICMP filter), kind of https://github.com/projectcalico/calico/issues/1709
# Cause: all ICMP errors are dropped at the input of node a: it cannot learn a smaller MTU on the way to node b.
# Expected: "rule of inet filter input drops ICMP fragmentation needed".
# NIKA: icmp_frag_needed_filter_misconfiguration
# Check: OV071
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
rule='icmp type echo-request accept'; [ "$DO" = healthy ] || rule='icmp type destination-unreachable drop'
ns a nft -f - <<NFT
add table inet filter
add chain inet filter input { type filter hook input priority 0; policy accept; }
add rule inet filter input $rule
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
