#!/bin/sh
# 149: arptables of a load balancer keeps a node from answering ARP.
# Source: no report; a variant: arptables of LVS direct routing
# Cause: table arp filter INPUT of b drops requests for 10.77.0.2
# Expected: rule of arp filter INPUT drops ARP requests for 10.77.0.2
# Check: OV071 OV036
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns b nft -f - <<NFT
table arp filter {
 chain INPUT {
 type filter hook input priority 0; policy accept; arp daddr ip 10.77.0.2 counter drop; 
}
}
NFT
ip -n "$P-a" neigh flush dev nic0; ip -n "$P-b" neigh flush dev nic0
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
