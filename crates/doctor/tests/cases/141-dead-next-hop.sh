#!/bin/sh
# 141: one of two next hops of the pods' route is dead.
# Source: no report; a variant: multipath route with a dead next hop
# Cause: 10.244.2.0/24 nexthop flannel.1, nexthop 10.77.0.99 that does not exist
# Expected: next hop 10.77.0.99 of 10.244.2.0/24 does not answer
# Check: OV078
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-a" route replace 10.244.2.0/24 nexthop via 10.244.2.0 dev flannel.1 onlink weight 1 nexthop via 10.77.0.99 dev nic0 weight 1
ns a sysctl -qw net.ipv4.fib_multipath_hash_policy=1
connects 10.244.2.2
echo "$0: $DO is there"
