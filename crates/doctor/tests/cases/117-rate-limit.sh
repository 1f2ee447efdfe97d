#!/bin/sh
# 117: a rate limit on UDP drops the tunnel.
# Source: no report; a variant: rate limit of hardening scripts
# Cause: INPUT drops UDP above 1 packet per second
# Expected: rule with limit drops UDP 8472
# Check: OV107
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
r='limit rate over 1/second burst 1 packets'; [ "$DO" = healthy ] && r='limit rate over 100000/second burst 5000 packets'
ns b nft -f - <<NFT
table ip filter {
 chain INPUT {
 type filter hook input priority 0; policy accept; ip protocol udp $r counter drop; 
}
}
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.1 10.244.2.2
echo "$0: $DO is there"
