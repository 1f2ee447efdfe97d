#!/bin/sh
# 74: a node's NIC has lost its address.
# Source: https://github.com/sands-lab/nika (host missing ip)
# Cause: node b's NIC has no address any more: nobody answers for 10.77.0.2.
# Expected: "10.77.0.2, next hop to 10.77.0.2 through a nic0, does not answer".
# NIKA: host_missing_ip
# Check: OV036
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-b" addr flush dev nic0
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
