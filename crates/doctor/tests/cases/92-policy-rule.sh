#!/bin/sh
# 92: a policy rule makes the pods of another node unreachable.
# Source: none; a variant of 51 by a policy rule
# Cause: node a has an ip rule from 10.244.1.0/24 to 10.244.2.0/24 unreachable.
# Expected: "IpExt InNoRoutes +3".
# Check: OV104 OV099
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-a" rule add from 10.244.1.0/24 to 10.244.2.0/24 prio 100 unreachable
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
