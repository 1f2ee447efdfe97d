#!/bin/sh
# 50: one node's pods have no route.
# Source: https://github.com/rancher/rancher/issues/13644 (same kind: flannel-io/flannel#1034)
# Cause: the network plug-in set neighbour and forwarding entry of a node, and not the route: packets to its pods
#   leave by the default route.
# Expected: "fixed neighbour 10.244.2.0; the route to 10.244.2.0 is default via 10.77.0.254, not through it".
# Check: OV078
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-a" route del 10.244.2.0/24
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
