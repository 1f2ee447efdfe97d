#!/bin/sh
# 70: two guests with one IP address.
# Source: https://github.com/sands-lab/nika (host ip conflict)
# Cause: a guest on the other host was given an address that is in use: ARP is answered by either.
# Expected: "10.100.0.2 at guest-b eth0 and third eth0".
# NIKA: host_ip_conflict
# Check: OV038
# One node: b guest-b third
. "$(dirname "$0")/bed.sh"

overlay 100 100
add third; ip -n "$P-third" link add eth0 mtu 1450 type veth peer name veth-third mtu 1450 netns "$P-b"
ip -n "$P-b" link set veth-third master br1 up
address=10.100.0.2; [ "$DO" = healthy ] && address=10.100.0.3
ip -n "$P-third" addr add $address/24 dev eth0; ip -n "$P-third" link set eth0 up
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
