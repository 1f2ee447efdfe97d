#!/bin/sh
# 71: a guest's NIC has a smaller MTU than its port.
# Source: https://github.com/sands-lab/nika (mtu mismatch)
# Cause: eth0 of guest-b has MTU 1280, its veth peer 1450: larger packets to it are dropped.
# Expected: "eth0 1280, veth-guest 1450".
# NIKA: mtu_mismatch
# Check: OV015 OV014
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || ip -n "$P-guest-b" link set eth0 mtu 1280
bg ping ip netns exec "$P-guest-a" ping -i 0.3 -s 1400 10.100.0.2
echo "$0: $DO is there"
