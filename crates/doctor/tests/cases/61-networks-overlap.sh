#!/bin/sh
# 61: a Docker network has the addresses of the LAN.
# Source: https://github.com/moby/moby/issues/21141 (same kind: bitwarden/server#947)
# Cause: a network of containers was made with the subnet of the LAN: the LAN's hosts cannot be reached.
# Expected: "br-lan has 10.77.0.129/25, nic0 has 10.77.0.1/24".
# Check: OV082
# One node: a app
. "$(dirname "$0")/bed.sh"

underlay a b
net=10.77.0; [ "$DO" = healthy ] && net=10.99.0
add app; ip -n "$P-a" link add br-lan type bridge; ip -n "$P-a" addr add $net.129/25 dev br-lan; ip -n "$P-a" link set br-lan up
ip -n "$P-app" link add eth0 type veth peer name veth-app netns "$P-a"; ip -n "$P-a" link set veth-app master br-lan up
ip -n "$P-app" addr add $net.130/25 dev eth0; ip -n "$P-app" link set eth0 up; ip -n "$P-app" route add default via $net.129
bg ping ip netns exec "$P-a" ping -i 0.5 10.77.0.254
echo "$0: $DO is there"
