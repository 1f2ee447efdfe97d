#!/bin/sh
# 53: the tunnel is not in the bridge.
# Source: https://github.com/sands-lab/nika (fault of its VXLAN scenario; like OpenNebula/one#4794, a bridge without its tunnel)
# Cause: the VXLAN device is up, and nobody made it a port of the guests' bridge (again).
# Expected: "vx100 is no port of a bridge; br1 has no tunnel".
# NIKA: link_detach
# Check: OV080
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || ip -n "$P-a" link set vx100 nomaster
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
