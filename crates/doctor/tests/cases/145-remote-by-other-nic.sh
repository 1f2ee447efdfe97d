#!/bin/sh
# 145: the default route lies elsewhere: the tunnel's remote is in another subnet.
# Source: no report; a variant of projectcalico/calico#9293: default route by the other NIC
# Cause: b is in 10.78.0.0/24; a's default route goes by nic1 to a network without a way there
# Expected: route to the VTEP 10.78.0.2 leads by nic1 / nobody answers
# Check: OV036
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
ip -n "$P-sw" link set p-b nomaster; ip -n "$P-sw" addr add 10.78.0.254/24 dev p-b
ip -n "$P-b" addr flush dev nic0; ip -n "$P-b" addr add 10.78.0.2/24 dev nic0; ip -n "$P-b" route add default via 10.78.0.254
ns sw sysctl -qw net.ipv4.ip_forward=1
ip -n "$P-b" link del vx100; ip -n "$P-b" link add vx100 type vxlan id 100 dev nic0 local 10.78.0.2 remote 10.77.0.1 dstport 4789; ip -n "$P-b" link set vx100 mtu 1450 master br1 up
ip -n "$P-a" link del vx100; ip -n "$P-a" link add vx100 type vxlan id 100 local 10.77.0.1 remote 10.78.0.2 dstport 4789; ip -n "$P-a" link set vx100 mtu 1450 master br1 up
add gw; ip -n "$P-a" link add nic1 type veth peer name e0 netns "$P-gw"; ip -n "$P-gw" addr add 192.168.50.254/24 dev e0; ip -n "$P-gw" link set e0 up
ip -n "$P-a" addr add 192.168.50.1/24 dev nic1; ip -n "$P-a" link set nic1 up; ns a ethtool -K nic1 gro on
[ "$DO" = healthy ] || ip -n "$P-a" route replace default via 192.168.50.254
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
