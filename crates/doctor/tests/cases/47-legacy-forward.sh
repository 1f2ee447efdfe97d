#!/bin/sh
# 47: rules of iptables-legacy that nft does not list.
# Source: https://github.com/cloudnativelabs/kube-router/issues/1069 (same kind: NixOS/nixpkgs#109332)
# Cause: one program uses iptables-nft, another iptables-legacy, whose FORWARD policy is drop: both decide.
# Expected: "policy of iptables-legacy filter FORWARD is drop, and no rule accepts packets from flannel.1 to cni0".
# Check: OV073
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ns b nft -f - <<NFT
add table ip filter
add chain ip filter FORWARD { type filter hook forward priority 0; policy accept; }
add rule ip filter FORWARD ip saddr 10.244.0.0/16 counter accept
NFT
ns b iptables-legacy -N KUBE-FORWARD
ns b iptables-legacy -A FORWARD -j KUBE-FORWARD
ns b iptables-legacy -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
[ "$DO" = healthy ] && ns b iptables-legacy -A KUBE-FORWARD -s 10.244.0.0/16 -j ACCEPT
ns b iptables-legacy -P FORWARD DROP
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
