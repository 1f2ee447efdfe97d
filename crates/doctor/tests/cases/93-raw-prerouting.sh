#!/bin/sh
# 93: a chain before the routing drops the tunnel's packets.
# Source: https://github.com/moby/moby/issues/49792 (same kind: rules of the raw table, before the routing)
# Cause: the policy of inet raw pre of node b is drop; UDP of the tunnel has no rule.
# Expected: "policy of inet raw pre is drop, and no rule accepts incoming UDP 8472".
# Check: OV071
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns b nft -f - <<NFT
add table inet raw
add chain inet raw pre { type filter hook prerouting priority -300; policy drop; }
add rule inet raw pre iifname != "nic0" accept
add rule inet raw pre meta l4proto { tcp, icmp } accept
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
