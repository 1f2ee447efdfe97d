#!/bin/sh
# 49: a blackhole of an earlier pod network.
# Source: https://github.com/rancher/rke2/issues/11170 (same kind: projectcalico/calico#2457, #3740)
# Cause: the pod networks were made larger; the node's blackhole for its old network lies inside another node's new one.
# Expected: "blackhole 10.244.2.0/25 drops packets inside 10.244.2.0/24 via 10.244.2.0".
# NIKA: host_static_blackhole
# Check: OV078
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
ip -n "$P-a" route add blackhole 10.244.1.0/24 metric 4096
[ "$DO" = healthy ] || ip -n "$P-a" route add blackhole 10.244.2.0/25
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
