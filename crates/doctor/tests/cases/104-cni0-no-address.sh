#!/bin/sh
# 104: cni0 has no address.
# Source: https://github.com/kubernetes/kubernetes/issues/67183
# Cause: cni0 of b lost 10.244.2.1/24
# Expected: cni0 of b has no address; pod-b's gateway 10.244.2.1 is nowhere
# Check: OV102
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-b" addr flush dev cni0
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
