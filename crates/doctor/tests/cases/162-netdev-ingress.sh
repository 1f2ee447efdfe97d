#!/bin/sh
# 162: a chain at the NIC's ingress, before all other rules, drops the tunnel's port.
# Source: no report; a variant: protection against floods at the hook ingress
# Cause: nft chain `netdev guard in` of b (hook ingress, nic0) drops UDP ports above 1024 but a few
# Expected: the rule of netdev guard in drops incoming UDP 8472
# Check: OV071
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
more=; [ "$DO" = healthy ] && more=", 8472"
ns b nft -f - <<NFT
table netdev guard {
 chain in {
 type filter hook ingress device nic0 priority -500; policy accept; udp dport != { 53, 67$more } counter drop
}
}
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
