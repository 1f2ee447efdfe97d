#!/bin/sh
# 95: a pod gets requests and has no route for its answers.
# Source: https://github.com/containernetworking/cni/issues/623
# Cause: pod-b has lost its default route; pod-a of another node asks it in vain.
# Expected: "Icmp InEchos +2, OutEchoReps +0; no default route".
# Check: OV099
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-pod-b" route del default
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
