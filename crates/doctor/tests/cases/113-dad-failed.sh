#!/bin/sh
# 113: IPv6: a pod's address failed duplicate address detection.
# Source: https://github.com/moby/moby/issues/15840 (same kind: kubernetes/kubernetes#32291)
# Cause: another pod on cni0 has fd24:2::2; pod-b's address stays tentative dadfailed
# Expected: fd24:2::2 of pod-b: duplicate address detection failed
# Check: OV108
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel6
if [ "$DO" != healthy ]; then
 add other; ip -n "$P-other" link add eth0 type veth peer name veth-other mtu 1430 netns "$P-b"; ip -n "$P-b" link set veth-other master cni0 up
 ip -n "$P-other" link set eth0 mtu 1430 up; ip -n "$P-other" addr add fd24:2::2/128 dev eth0 nodad
 ip -n "$P-pod-b" addr del fd24:2::2/64 dev eth0; sleep 0.5; ip -n "$P-pod-b" addr add fd24:2::2/64 dev eth0; ip -n "$P-pod-b" -6 route replace default via fd24:2::1; sleep 2
 ip -n "$P-other" link set eth0 down
fi
bg ping ip netns exec "$P-pod-a" ping -i 0.5 fd24:2::2
echo "$0: $DO is there"
