#!/bin/sh
# 127: a host port rule hijacks pods' connections to a service.
# Source: https://github.com/cloudnativelabs/kube-router/issues/612
# Cause: a: CNI-HOSTPORT-DNAT takes TCP 80 to any address, also 10.244.2.2 of b, to 10.244.1.99 that does not exist
# Expected: DNAT rule for TCP 80 without address takes packets to pods of other nodes
# Check: OV109
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
x='fib daddr type local'; [ "$DO" = healthy ] || x=
ns a nft -f - <<NFT
table ip nat {
 chain CNI-HOSTPORT-DNAT {
 tcp dport 80 counter dnat to 10.244.1.99:80; 
}
chain PREROUTING {
 type nat hook prerouting priority -100; policy accept; $x counter jump CNI-HOSTPORT-DNAT; 
}
}
NFT
connects 10.244.2.2
echo "$0: $DO is there"
