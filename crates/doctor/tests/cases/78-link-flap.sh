#!/bin/sh
# 78: a node's NIC goes down and comes back.
# Source: https://github.com/sands-lab/nika (link flap)
# Cause: nic0 of node b is set down and up again every second.
# Expected: "carrier_changes +2".
# NIKA: link_flap
# Check: OV095
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || bg flap sh -c "while :; do ip -n $P-b link set nic0 down; sleep 0.15; ip -n $P-b link set nic0 up
  ip -n $P-b route replace default via 10.77.0.254; sleep 0.25; done"
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
