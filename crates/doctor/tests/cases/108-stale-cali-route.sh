#!/bin/sh
# 108: calico: the route of a pod goes to another pod's old device.
# Source: https://github.com/projectcalico/calico/issues/10723
# Cause: 10.244.2.2 dev caliold scope link instead of cali1234
# Expected: route to 10.244.2.2 leads to caliold, pod-b is behind cali1234
# Check: OV103
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

calico

add old; ip -n "$P-b" link add caliold type veth peer name eth0 netns "$P-old"; ip -n "$P-b" link set caliold up; ip -n "$P-old" link set eth0 up
[ "$DO" = healthy ] || ip -n "$P-b" route replace 10.244.2.2 dev caliold scope link
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
