#!/bin/sh
# 80: a pod's prefix is too short.
# Source: https://github.com/sands-lab/nika (host incorrect netmask)
# Cause: pod-a has 10.244.1.2/16 instead of /24: it seeks the pods of other nodes on its own bridge.
# Expected: "pod-a eth0 has 10.244.1.2/16, a cni0 has 10.244.1.1/24".
# NIKA: host_incorrect_netmask
# Check: OV096
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
if [ "$DO" != healthy ]; then
  ip -n "$P-pod-a" addr flush dev eth0; ip -n "$P-pod-a" addr add 10.244.1.2/16 dev eth0
  ip -n "$P-pod-a" route add default via 10.244.1.1
fi
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
