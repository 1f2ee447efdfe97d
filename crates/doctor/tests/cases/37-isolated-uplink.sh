#!/bin/sh
# 37: every port of a bridge is isolated.
# Source: https://github.com/OpenNebula/one/issues/7381 (the default that it asks for, applied to the uplink, too)
# Cause: isolated ports exchange no frames with each other; the tunnel is one of them.
# Expected: "vx100 is isolated, like veth-guest: they exchange no frames".
# Check: OV075
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
if [ "$DO" != healthy ]; then ns a bridge link set dev veth-guest isolated on; ns a bridge link set dev vx100 isolated on; fi
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
