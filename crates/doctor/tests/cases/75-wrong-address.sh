#!/bin/sh
# 75: a node's NIC has another address than its tunnels.
# Source: https://github.com/sands-lab/nika (host incorrect ip)
# Cause: node b's NIC has 10.77.0.22; flannel.1 and the other node use 10.77.0.2.
# Expected: "10.77.0.2, next hop to 10.77.0.2 through a nic0, does not answer".
# NIKA: host_incorrect_ip
# Check: OV036
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || { ip -n "$P-b" addr flush dev nic0; ip -n "$P-b" addr add 10.77.0.22/24 dev nic0; }
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
