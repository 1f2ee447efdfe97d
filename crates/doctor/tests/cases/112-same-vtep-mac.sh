#!/bin/sh
# 112: cloned nodes: two VTEPs have one MAC.
# Source: no report; a variant: cloned nodes
# Cause: flannel.1 of b and c have one MAC; the entry of a leads both to c
# Expected: 02:f1:00:00:00:03 is flannel.1 of b and of c
# Check: OV039
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

underlay a b c; node a 1; node b 2; node c 3
if [ "$DO" = healthy ]; then knows a 2; else
 ip -n "$P-b" link set flannel.1 address 02:f1:00:00:00:03
 ip -n "$P-a" route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink; ip -n "$P-a" neigh add 10.244.2.0 lladdr 02:f1:00:00:00:03 dev flannel.1 nud permanent
fi
knows b 1; knows c 1; knows a 3
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
