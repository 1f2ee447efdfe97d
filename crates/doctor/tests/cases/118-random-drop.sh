#!/bin/sh
# 118: a rule drops packets at random.
# Source: no report; NIKA link loss, as a rule
# Cause: FORWARD of b: numgen random mod 10 < 4 drop
# Expected: rule with numgen random drops packets to pods
# Check: OV107
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns b nft -f - <<NFT
table ip filter {
 chain FORWARD {
 type filter hook forward priority 0; policy accept; oifname "cni0" numgen random mod 10 < 4 counter drop; 
}
}
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.1 10.244.2.2
echo "$0: $DO is there"
