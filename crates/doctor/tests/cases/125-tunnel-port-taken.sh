#!/bin/sh
# 125: a published container port takes the tunnel's port.
# Source: https://github.com/cloudnativelabs/kube-router/issues/612 / kubernetes#65976
# Cause: nat PREROUTING of b DNATs UDP 8472 to 10.244.2.50
# Expected: DNAT rule takes UDP 8472 away from flannel.1
# Check: OV109
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns b nft -f - <<NFT
table ip nat {
 chain DOCKER {
 iifname != "docker0" udp dport 8472 counter dnat to 10.244.2.50:8472; 
}
 chain PREROUTING {
 type nat hook prerouting priority -100; policy accept; fib daddr type local counter jump DOCKER; 
}
}
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
