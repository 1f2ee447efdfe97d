#!/bin/sh
# 43: firewalld does not know the tunnel's port.
# Source: https://github.com/kubernetes/website/pull/13789 (kubeadm with flannel on CentOS)
# Cause: the zone of the NIC accepts ssh and rejects the rest; nobody opened UDP 8472.
# Expected: "rule … of inet firewalld filter_INPUT drops incoming UDP 8472".
# Check: OV071
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
firewalld b "$([ "$DO" = healthy ] && echo 'udp dport 8472 accept')" 'iifname { "cni0", "flannel.1" } accept'
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
