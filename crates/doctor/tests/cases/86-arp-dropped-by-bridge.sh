#!/bin/sh
# 86: a bridge's filter drops ARP.
# Source: https://github.com/sands-lab/nika (arp acl block)
# Cause: a rule of host b drops ARP that crosses br1 (ebtables -A FORWARD -p ARP -j DROP).
# Expected: "drops ARP requests that only cross br1".
# NIKA: arp_acl_block
# Check: OV073
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || ns b nft -f - <<NFT
add table bridge filter
add chain bridge filter FORWARD { type filter hook forward priority -200; policy accept; }
add rule bridge filter FORWARD ether type arp counter drop
NFT
bg ping ip netns exec "$P-guest-a" ping -i 0.3 10.100.0.2
echo "$0: $DO is there"
