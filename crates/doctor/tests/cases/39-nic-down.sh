#!/bin/sh
# 39: the NIC under a tunnel is down.
# Source: https://github.com/sands-lab/nika (link down)
# Cause: node b's NIC was set down; its routes are gone with it.
# Expected: "nic0 is down".
# NIKA: link_down
# Check: OV051
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-b" link set nic0 down
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
