#!/bin/sh
# 126: an egress address is put on the tunnel's own packets.
# Source: no report; a variant: egress address put on tunnel packets
# Cause: a translates UDP 4789 to source 10.77.0.100, which no host has; b learns guest-a behind 10.77.0.100
# Expected: SNAT rule of a changes the tunnel's source; b learned 10.77.0.100
# Check: OV109
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
x=; [ "$DO" = healthy ] || x='ip saddr 10.77.0.1 udp dport 4789 oifname "nic0" counter snat to 10.77.0.100'
ns a nft -f - <<NFT
table ip nat {
 chain POSTROUTING {
 type nat hook postrouting priority 100; policy accept; tcp dport 4444 masquerade
$x
}
}
NFT
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
