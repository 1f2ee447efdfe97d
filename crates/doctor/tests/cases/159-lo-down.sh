#!/bin/sh
# 159: a runtime leaves the loopback device of a pod down.
# Source: https://github.com/kubernetes/kubernetes/issues/28561 (same kind: pelagos-containers/pelagos#331)
# Cause: lo of pod-b is down: programs in the pod do not reach 127.0.0.1 nor the pod's own address
# Expected: lo of pod-b is down
# Check: OV051
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-pod-b" link set lo down
connects 10.244.2.2 pod-b
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
