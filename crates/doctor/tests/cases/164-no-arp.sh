#!/bin/sh
# 164: a runtime copies NOARP from a device of the host to the guest's.
# Source: https://github.com/kata-containers/runtime/issues/2188
# Cause: eth0 of guest-b has arp off: it neither asks nor answers
# Expected: NOARP on eth0 of guest-b
# Check: OV120
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || ip -n "$P-guest-b" link set eth0 arp off
bg ping ip netns exec "$P-guest-b" ping -i 0.5 10.100.0.1
bg back ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
