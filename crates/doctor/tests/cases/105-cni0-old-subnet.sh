#!/bin/sh
# 105: cni0 still has the subnet of an earlier life of the node.
# Source: https://github.com/cloudnativelabs/kube-router/issues/689
# Cause: cni0 has 10.244.9.1/24, the pod 10.244.2.2/24
# Expected: cni0 10.244.9.1 is not in the pods' network
# Check: OV102
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || { ip -n "$P-b" addr flush dev cni0; ip -n "$P-b" addr add 10.244.9.1/24 dev cni0; }
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
