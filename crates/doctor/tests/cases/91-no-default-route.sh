#!/bin/sh
# 91: a pod has lost its default route.
# Source: https://github.com/containernetworking/cni/issues/623
# Cause: pod-a reaches its own bridge only.
# Expected: "Ip OutNoRoutes +3; no default route".
# Check: OV099
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-pod-a" route del default
bg ask ip netns exec "$P-pod-a" sh -c 'while :; do ping -c 1 -W 1 10.244.2.2; sleep 0.2; done'
echo "$0: $DO is there"
