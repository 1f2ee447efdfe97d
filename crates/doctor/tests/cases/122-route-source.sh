#!/bin/sh
# 122: the route to the pods of another node has a foreign source address.
# Source: https://github.com/flannel-io/flannel/issues/895
# Cause: node a sends to 10.244.2.0/24 with src 172.17.0.1 (docker0), for which b has no way by the tunnel
# Expected: route 10.244.2.0/24 on a has src 172.17.0.1, unknown to b
# Check: OV078
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
ip -n "$P-a" link add docker0 type bridge; ip -n "$P-a" addr add 172.17.0.1/16 dev docker0; ip -n "$P-a" link set docker0 up
[ "$DO" = healthy ] || ip -n "$P-a" route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink src 172.17.0.1
bg ping ip netns exec "$P-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
