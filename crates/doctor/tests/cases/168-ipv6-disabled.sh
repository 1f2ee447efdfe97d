#!/bin/sh
# 168: IPv6 is disabled in a pod of a dual-stack network.
# Source: https://github.com/sonic-net/sonic-mgmt/issues/252 (same kind: moby/moby#32433)
# Cause: net.ipv6.conf.eth0.disable_ipv6 = 1 in pod-b, which therefore has lost its address
# Expected: disable_ipv6 = 1 of pod-b eth0
# Check: OV118
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel6
[ "$DO" = healthy ] || ns pod-b sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1
bg ping ip netns exec "$P-pod-a" ping -i 0.5 fd24:2::2
echo "$0: $DO is there"
