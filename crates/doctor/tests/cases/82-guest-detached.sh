#!/bin/sh
# 82: a guest's port is taken out of its bridge.
# Source: https://github.com/nmstate/kubernetes-nmstate/pull/701 (like NixOS/nixpkgs#42828; link detach of NIKA)
# Cause: veth-guest of host b is no port of br1 any more: guest-b reaches nobody.
# Expected: "no bridge, no address, no route; its peer is guest-b eth0".
# NIKA: link_detach
# Check: OV097
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || ip -n "$P-b" link set veth-guest nomaster
bg ping ip netns exec "$P-guest-a" ping -i 0.3 10.100.0.2
bg pong ip netns exec "$P-guest-b" ping -i 0.3 10.100.0.1
echo "$0: $DO is there"
