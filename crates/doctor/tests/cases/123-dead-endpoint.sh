#!/bin/sh
# 123: kube-proxy: a service's rule leads to a pod that is gone.
# Source: https://github.com/kubernetes/kubernetes/issues/19029 (kind: stale endpoint rule)
# Cause: DNAT of 10.96.0.10:80 to 10.244.2.9, which does not exist
# Expected: DNAT rule to 10.244.2.9, which nobody has (neighbour failed on b)
# Check: OV109
. "$(dirname "$0")/bed.sh"

flannel
d=10.244.2.9; [ "$DO" = healthy ] && d=10.244.2.2
ns a nft -f - <<NFT
table ip nat {
 chain KUBE-SEP-X {
 meta l4proto tcp counter dnat to $d:80; 
}
 chain KUBE-SVC-X {
 counter jump KUBE-SEP-X; 
}
 chain KUBE-SERVICES {
 ip daddr 10.96.0.10 tcp dport 80 counter jump KUBE-SVC-X; 
}
 chain PREROUTING {
 type nat hook prerouting priority -100; policy accept; counter jump KUBE-SERVICES; 
}
}
NFT
connects 10.96.0.10
echo "$0: $DO is there"
