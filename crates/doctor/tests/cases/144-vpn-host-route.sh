#!/bin/sh
# 144: a VPN client routes the other node's address into itself.
# Source: https://github.com/k3s-io/k3s/issues/8372
# Cause: a has 10.77.0.2/32 dev vpn0 (a TUN whose program is gone)
# Expected: route to the VTEP 10.77.0.2 leads to vpn0
# Check: OV036
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
ip -n "$P-a" tuntap add dev vpn0 mode tun; ip -n "$P-a" addr add 10.8.0.2/24 dev vpn0; ip -n "$P-a" link set vpn0 up
[ "$DO" = healthy ] || ip -n "$P-a" route add 10.77.0.2/32 dev vpn0
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
