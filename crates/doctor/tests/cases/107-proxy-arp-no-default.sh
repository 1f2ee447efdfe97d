#!/bin/sh
# 107: calico: a host without a default route does not answer ARP of pods.
# Source: https://github.com/projectcalico/calico/issues/3270
# Cause: proxy ARP answers for addresses that have a route only: node b has no default route
# Expected: node b has no route to 169.254.1.1, so proxy ARP does not answer
# Check: OV102
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

calico

[ "$DO" = healthy ] || ip -n "$P-b" route del default
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
