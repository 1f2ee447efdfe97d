#!/bin/sh
# 137: pods reach no server outside: masquerading is missing.
# Source: https://github.com/kubernetes/kubernetes/issues/40761
# Cause: no masquerade rule: the server outside gets 10.244.1.2 as source and has no way back
# Expected: packets of pods leave nic0 with source 10.244.1.2, no rule translates
# Check: OV113
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
add srv; ip -n "$P-srv" link add nic0 type veth peer name p-srv netns "$P-sw"; ip -n "$P-sw" link set p-srv master br0 up
ip -n "$P-srv" addr add 10.77.0.200/24 dev nic0; ip -n "$P-srv" link set nic0 up; ip -n "$P-srv" route add default via 10.77.0.254
ns sw sysctl -qw net.ipv4.ip_forward=1
[ "$DO" = healthy ] && ns a nft -f - <<NFT
table ip nat {
 chain POSTROUTING {
 type nat hook postrouting priority 100; policy accept; ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 return; ip saddr 10.244.1.0/24 oifname "nic0" counter masquerade; 
}
}
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.77.0.200
echo "$0: $DO is there"
