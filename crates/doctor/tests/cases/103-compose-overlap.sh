#!/bin/sh
# 103: a docker-compose network has part of another node's pod network.
# Source: https://github.com/telepresenceio/telepresence/pull/4089 (same kind: kontena/pharos-cluster#1330)
# Cause: br-compose on a has 10.244.2.1/25, more specific than the route 10.244.2.0/24 by flannel.1
# Expected: br-compose 10.244.2.0/25 overlaps pods of node b
# Check: OV082
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
n=172.19.0.1/16; [ "$DO" = healthy ] || n=10.244.2.1/25
ip -n "$P-a" link add br-compose type bridge; ip -n "$P-a" addr add $n dev br-compose; ip -n "$P-a" link set br-compose up
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
