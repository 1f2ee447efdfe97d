#!/bin/sh
# 163: a routing daemon's next hop object turned into a blackhole.
# Source: https://github.com/FRRouting/frr/issues/6522 (stale objects: FRRouting/frr#22002)
# Cause: route to 10.244.2.0/24 of a has nhid 7, which is a blackhole
# Expected: blackhole 10.244.2.0/24 in place of the way through flannel.1
# Check: OV078
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
if [ "$DO" = healthy ]; then ip -n "$P-a" nexthop add id 7 via 10.244.2.0 dev flannel.1 onlink
else ip -n "$P-a" nexthop add id 7 blackhole; fi
ip -n "$P-a" route replace 10.244.2.0/24 nhid 7
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
