#!/bin/sh
# 154: a pod has two networks and answers by the wrong one.
# Source: no report; a variant: pod with two networks
# Cause: pod-b has net1 with the default route; answers to 10.244.1.2 leave by net1
# Expected: default route of pod-b leads by net1
# Check: OV103
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
add far; ip -n "$P-far" link add e0 type veth peer name net1 netns "$P-pod-b"; ip -n "$P-far" addr add 192.168.9.254/24 dev e0; ip -n "$P-far" link set e0 up
ip -n "$P-pod-b" addr add 192.168.9.2/24 dev net1; ip -n "$P-pod-b" link set net1 up; ns pod-b ethtool -K net1 gro on
[ "$DO" = healthy ] || ip -n "$P-pod-b" route replace default via 192.168.9.254
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
