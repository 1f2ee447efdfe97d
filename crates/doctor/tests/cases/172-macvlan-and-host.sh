#!/bin/sh
# 172: a host does not reach its own containers on a macvlan network.
# Source: https://github.com/moby/libnetwork/issues/1915 (docker/docs#22607)
# Cause: eth0 of guest is a macvlan of nic0: the kernel does not pass frames between them
# Expected: guest eth0 is a macvlan of a nic0, which it cannot reach
# Check: OV119
# One node: a guest
. "$(dirname "$0")/bed.sh"

flannel
add guest; ip -n "$P-a" link add mv0 link nic0 type macvlan mode bridge
ip -n "$P-a" link set mv0 netns "$P-guest" name eth0
ip -n "$P-guest" addr add 10.77.0.50/24 dev eth0; ip -n "$P-guest" link set eth0 up
to=10.77.0.1; [ "$DO" = healthy ] && to=10.77.0.2
bg ping ip netns exec "$P-guest" ping -i 0.5 $to
bg pods ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
