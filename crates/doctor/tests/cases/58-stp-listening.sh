#!/bin/sh
# 58: spanning tree holds a new port back for half a minute.
# Source: https://github.com/OpenNebula/one-deploy/pull/290
# Cause: the bridge runs spanning tree with its default delay, and its ports do not forward yet.
# Expected: "state of the port of br1: listening; spanning tree protocol: on".
# Check: OV075
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || { ip -n "$P-a" link set br1 type bridge stp_state 1 forward_delay 3000
ip -n "$P-a" link set veth-guest nomaster; ip -n "$P-a" link set veth-guest master br1
ip -n "$P-a" link set vx100 nomaster; ip -n "$P-a" link set vx100 master br1; }
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
