#!/bin/sh
# 169: the pods' network contains the nodes' addresses: the tunnel's own packets enter the tunnel.
# Source: https://github.com/projectcalico/calico/issues/2720 (same kind: projectcalico/calico#4131)
# Cause: 10.77.0.0/26 of a leads to flannel.1, whose remote end 10.77.0.2 is inside
# Expected: the route to the remote end 10.77.0.2 leads through flannel.1 itself
# Check: OV036
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-a" route add 10.77.0.0/26 via 10.244.2.0 dev flannel.1 onlink
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
