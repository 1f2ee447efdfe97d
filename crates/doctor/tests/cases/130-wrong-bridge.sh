#!/bin/sh
# 130: a guest's port is in the wrong bridge.
# Source: no report; a variant: port in the wrong bridge
# Cause: veth-guest of b is a port of br2, which has no tunnel; vx100 is in br1
# Expected: veth-guest in br2; vx100 in br1
# Check: OV097
. "$(dirname "$0")/bed.sh"

overlay 100 100
ip -n "$P-b" link add br2 mtu 1450 type bridge mcast_snooping 0; ip -n "$P-b" link set br2 up
[ "$DO" = healthy ] || ip -n "$P-b" link set veth-guest master br2
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
