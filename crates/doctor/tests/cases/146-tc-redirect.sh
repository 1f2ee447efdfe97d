#!/bin/sh
# 146: a tc redirect that a removed sandbox left behind takes a pod's packets.
# Source: no report; a variant: redirect left by a removed sandbox
# Cause: ingress of eth0 in pod-b: u32 match all, mirred redirect to a TAP without a program
# Expected: tc filter at ingress of eth0 redirects to tap0_kata, which nobody reads
# Check: OV048
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ip -n "$P-pod-b" tuntap add dev tap0_kata mode tap; ip -n "$P-pod-b" link set tap0_kata up
[ "$DO" = healthy ] || { ns pod-b tc qdisc add dev eth0 ingress; ns pod-b tc filter add dev eth0 parent ffff: protocol all u32 match u8 0 0 action mirred egress redirect dev tap0_kata; }
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
