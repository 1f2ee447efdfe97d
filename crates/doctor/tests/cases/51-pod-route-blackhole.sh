#!/bin/sh
# 51: a blackhole in place of the route to another node's pods.
# Source: https://github.com/projectcalico/calico/issues/3740
# Cause: the routing daemon took another node's block for its own, and set a blackhole for it.
# Expected: "fixed neighbour 10.244.2.0; route to 10.244.2.0: blackhole 10.244.2.0/24".
# Check: OV078
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || { ip -n "$P-a" route del 10.244.2.0/24; ip -n "$P-a" route add blackhole 10.244.2.0/24; }
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
