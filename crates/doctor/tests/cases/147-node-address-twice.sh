#!/bin/sh
# 147: two nodes have one address.
# Source: no report; NIKA host_ip_conflict, on the underlay
# Cause: a server c outside took 10.77.0.2, the address of b
# Expected: 10.77.0.2 at nic0 of b and nic0 of c
# Check: OV038
. "$(dirname "$0")/bed.sh"

underlay a b c; node a 1; node b 2; knows a 2; knows b 1
[ "$DO" = healthy ] || { ip -n "$P-c" addr flush dev nic0; ip -n "$P-c" addr add 10.77.0.2/24 dev nic0; ip -n "$P-a" neigh flush dev nic0; ns c arping -q -c 1 -U -I nic0 10.77.0.2 2>/dev/null || :; }
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
