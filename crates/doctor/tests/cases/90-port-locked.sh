#!/bin/sh
# 90: a bridge port is locked.
# Source: https://man7.org/linux/man-pages/man8/bridge.8.html (locked: 802.1X without an entry for the guest)
# Cause: veth-guest of host b is locked, and br1 has no entry for guest-b: its frames are dropped.
# Expected: "locked on: frames from addresses without an entry are dropped".
# Check: OV075
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
if [ "$DO" != healthy ]; then
  ns b bridge link set dev veth-guest learning off
  ns b bridge link set dev veth-guest locked on
  mac=$(ns guest-b cat /sys/class/net/eth0/address)
  ns b bridge fdb del "$mac" dev veth-guest master 2>/dev/null || : # learned from IPv6's first packets
fi
bg ping ip netns exec "$P-guest-a" ping -i 0.3 10.100.0.2
echo "$0: $DO is there"
