#!/bin/sh
# 56: two guests with one hardware address.
# Source: https://github.com/harvester/harvester/issues/11122
# Cause: a device with a fixed address was made on two hosts at once; the bridges learn it here, then there.
# Expected: "br1 has learned 02:00:00:00:00:aa at vx100; 02:00:00:00:00:aa is guest-a eth0".
# NIKA: mac_address_conflict
# Check: OV081 OV039
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
add third; ip -n "$P-third" link add eth0 mtu 1450 type veth peer name veth-third mtu 1450 netns "$P-b"
ip -n "$P-b" link set veth-third master br1 up; ip -n "$P-third" addr add 10.100.0.3/24 dev eth0
ip -n "$P-guest-a" link set eth0 address 02:00:00:00:00:aa
[ "$DO" = healthy ] || ip -n "$P-third" link set eth0 address 02:00:00:00:00:aa
ip -n "$P-third" link set eth0 up
bg ping ip netns exec "$P-guest-a" ping -i 1 10.100.0.2
bg other ip netns exec "$P-third" ping -b -i 0.2 10.100.0.255
echo "$0: $DO is there"
