#!/bin/sh
# 138: a pod does not reach itself by its service.
# Source: https://github.com/kubernetes/kubernetes/issues/13375
# Cause: hairpin of veth-pod at cni0 is off; DNAT sends the packet back to the port it came from
# Expected: hairpin off at veth-pod
# Check: OV075
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ns b nft -f - <<NFT
table ip nat {
 chain PREROUTING {
 type nat hook prerouting priority -100; policy accept; ip daddr 10.96.0.10 tcp dport 80 counter dnat to 10.244.2.2:80; 
}
 chain POSTROUTING {
 type nat hook postrouting priority 100; policy accept; ip saddr 10.244.2.2 ip daddr 10.244.2.2 counter masquerade; 
}
}
NFT
[ "$DO" = healthy ] && ns b bridge link set dev veth-pod hairpin on
connects 10.96.0.10 pod-b
echo "$0: $DO is there"
