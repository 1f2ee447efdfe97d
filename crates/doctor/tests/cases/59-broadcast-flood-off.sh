#!/bin/sh
# 59: the tunnel's port gets no broadcasts.
# Source: https://github.com/FRRouting/frr/issues/19121 (the same effect, by a setting of the port)
# Cause: bcast_flood of the tunnel's port is off, so ARP does not leave the host.
# Expected: "bcast_flood off: it gets no broadcast".
# Check: OV075
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || ns a bridge link set dev vx100 bcast_flood off
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
