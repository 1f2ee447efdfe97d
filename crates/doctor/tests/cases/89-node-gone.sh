#!/bin/sh
# 89: a node is gone.
# Source: https://github.com/sands-lab/nika (host crash)
# Cause: node b has crashed: nobody answers for 10.77.0.2, and the other nodes' entries still lead there.
# Expected: "10.77.0.2, next hop to 10.77.0.2 through a nic0, does not answer".
# NIKA: host_crash
# Check: OV036
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || { ip -n "$P-b" link del nic0; ip netns del "$P-pod-b"; ip netns del "$P-b"; }
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
