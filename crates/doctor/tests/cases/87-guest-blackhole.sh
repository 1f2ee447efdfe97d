#!/bin/sh
# 87: a guest drops packets to another guest.
# Source: https://github.com/sands-lab/nika (host static blackhole)
# Cause: a route of guest-a drops packets to 10.100.0.2, which is in its own network.
# Expected: "blackhole 10.100.0.2/32 drops packets inside 10.100.0.0/24".
# NIKA: host_static_blackhole
# Check: OV078
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || ip -n "$P-guest-a" route add blackhole 10.100.0.2/32
bg ping ip netns exec "$P-guest-b" ping -i 0.3 10.100.0.1
echo "$0: $DO is there"
