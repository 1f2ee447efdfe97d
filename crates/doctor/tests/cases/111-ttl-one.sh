#!/bin/sh
# 111: a VXLAN device with TTL 1 and a router between the hosts.
# Source: no report; a variant: ttl 1
# Cause: vx100 of a has ttl 1; b is behind a router
# Expected: ttl 1 of vx100: outer packets expire at the router
# Check: OV105
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
ip -n "$P-sw" link set p-b nomaster; ip -n "$P-sw" addr add 10.78.0.254/24 dev p-b
ip -n "$P-b" addr flush dev nic0; ip -n "$P-b" addr add 10.78.0.2/24 dev nic0; ip -n "$P-b" route add default via 10.78.0.254
ns sw sysctl -qw net.ipv4.ip_forward=1
ip -n "$P-b" link del vx100; ip -n "$P-b" link add vx100 type vxlan id 100 dev nic0 local 10.78.0.2 remote 10.77.0.1 dstport 4789
ip -n "$P-b" link set vx100 mtu 1450 master br1 up
t=1; [ "$DO" = healthy ] && t=64
ip -n "$P-a" link del vx100; ip -n "$P-a" link add vx100 type vxlan id 100 dev nic0 local 10.77.0.1 remote 10.78.0.2 dstport 4789 ttl $t
ip -n "$P-a" link set vx100 mtu 1450 master br1 up
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
