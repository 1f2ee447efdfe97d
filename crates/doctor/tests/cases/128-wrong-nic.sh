#!/bin/sh
# 128: the VXLAN device is bound to the wrong NIC.
# Source: https://github.com/kubernetes-sigs/kubespray/issues/2114
# Cause: vx100 of a has dev nic1 (another network); b is behind nic0
# Expected: vx100 sends by nic1, where 10.77.0.2 is not
# Check: OV036
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
ip -n "$P-a" link add nic1 type veth peer name n1 netns "$P-sw"; ip -n "$P-sw" link set n1 up; ip -n "$P-a" addr add 192.168.50.1/24 dev nic1; ip -n "$P-a" link set nic1 up; ns a ethtool -K nic1 gro on
[ "$DO" = healthy ] || { ip -n "$P-a" link del vx100; ip -n "$P-a" link add vx100 type vxlan id 100 dev nic1 local 10.77.0.1 remote 10.77.0.2 dstport 4789; ip -n "$P-a" link set vx100 mtu 1450 master br1 up; }
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
