#!/bin/sh
# 81: a guest's prefix is too long.
# Source: https://github.com/sands-lab/nika (host incorrect netmask)
# Cause: guest-b has 10.100.0.130/25 instead of /24, and no route to guest-a: its answers are lost.
# Expected: "guest-b eth0 has 10.100.0.130/25, guest-a eth0 has 10.100.0.1/24".
# NIKA: host_incorrect_netmask
# Check: OV096
. "$(dirname "$0")/bed.sh"

overlay 100 100
length=25; [ "$DO" = healthy ] && length=24
ip -n "$P-guest-b" addr flush dev eth0; ip -n "$P-guest-b" addr add 10.100.0.130/$length dev eth0
bg ping ip netns exec "$P-guest-a" ping -i 0.3 10.100.0.130
echo "$0: $DO is there"
