#!/bin/sh
# 97: a program took the UDP port of a VXLAN device.
# Source: https://github.com/weaveworks/weave/issues/2375
# Cause: a program bound 4789 while vx100 of host b was down; setting it up fails: EADDRINUSE.
# Expected: "vx100 is down; the UDP socket on port 4789 in b belongs to another program".
# Check: OV033
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
if [ "$DO" != healthy ]; then
  ip -n "$P-b" link set vx100 down
  bg taken ip netns exec "$P-b" python3 -uc '
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 4789)); print("bound"); time.sleep(1000)'
  printed taken bound
  ip -n "$P-b" link set vx100 up 2>/dev/null && exit 1
fi
bg ping ip netns exec "$P-guest-a" ping -i 0.3 10.100.0.2
echo "$0: $DO is there"
