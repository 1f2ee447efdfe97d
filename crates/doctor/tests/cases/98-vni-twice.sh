#!/bin/sh
# 98: two VXLAN devices have one VNI and one port.
# Source: https://github.com/moby/moby/pull/42548 (a device that a program left behind; like moby/libnetwork#1765)
# Cause: vxold of host b, with the group policy extension, holds port 4789; vx100 has no socket of its own.
# Expected: "vx100 is down; the UDP socket on port 4789 in b belongs to vxold, which has the same VNI 100".
# Check: OV033
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
if [ "$DO" != healthy ]; then
  ip -n "$P-b" link set vx100 down
  ip -n "$P-b" link add vxold mtu 1450 type vxlan id 100 gbp local 10.77.0.2 remote 10.77.0.1 dstport 4789
  ip -n "$P-b" link set vxold up
  ip -n "$P-b" link set vx100 up 2>/dev/null && exit 1
fi
bg ping ip netns exec "$P-guest-a" ping -i 0.3 10.100.0.2
echo "$0: $DO is there"
