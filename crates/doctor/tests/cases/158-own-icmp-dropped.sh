#!/bin/sh
# 158: the bridge keeps 1500 after a change of the back end: pods send too large packets.
# Source: no report; a variant: node drops its own "fragmentation needed"
# Cause: pods' eth0, veth and cni0 of a have 1500, flannel.1 1450; ICMP fragmentation needed is made by a, pod has DF
# Expected: cni0 1500 over flannel.1 1450
# Check: OV073
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || { ip -n "$P-a" link set cni0 mtu 1500; ip -n "$P-a" link set veth-pod mtu 1500; ip -n "$P-pod-a" link set eth0 mtu 1500; ns a nft -f - <<NFT
table ip filter {
 chain OUTPUT {
 type filter hook output priority 0; policy accept; icmp type destination-unreachable counter drop; 
}
}
NFT
}
bg ping ip netns exec "$P-pod-a" ping -M do -s 1440 -i 0.5 10.244.2.2
bg cl ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
