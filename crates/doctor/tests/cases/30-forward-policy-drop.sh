#!/bin/sh
# 30: Docker's FORWARD policy drops the pods' packets.
# Source: https://github.com/flannel-io/flannel/issues/799 (#609, #603)
# Cause: since Docker 1.13 the policy of FORWARD is DROP, and this flannel adds no rules of its own.
# Expected: "policy of ip filter FORWARD is drop, and no rule accepts packets from flannel.1 to cni0".
# Check: OV073
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
own=; [ "$DO" = healthy ] && own='add rule ip filter FORWARD iifname "cni0" counter accept
add rule ip filter FORWARD oifname "cni0" counter accept'
ns b nft -f - <<NFT
add table ip filter
add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }
add rule ip filter FORWARD iifname "docker0" counter accept
add rule ip filter FORWARD oifname "docker0" ct state related,established counter accept
$own
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
