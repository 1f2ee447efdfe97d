#!/bin/sh
# 77: a pod's default route leads to an address that nobody has.
# Source: https://github.com/sands-lab/nika (host incorrect gateway)
# Cause: pod-a's gateway is 10.244.1.254; cni0 has 10.244.1.1.
# Expected: "10.244.1.254 does not answer".
# NIKA: host_incorrect_gateway
# Check: OV102 OV041
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-pod-a" route replace default via 10.244.1.254
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
