#!/bin/sh
# 38: a bridge port is in the disabled state.
# Source: https://github.com/sands-lab/nika (host and link faults)
# Cause: the port was disabled by hand; the device is up and has a carrier.
# Expected: "state of the port of br1: disabled".
# Check: OV075
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || ns a bridge link set dev vx100 state 0
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
