#!/bin/sh
# 132: a pod ignores pings.
# Source: no report; a variant: icmp_echo_ignore_all
# Cause: net.ipv4.icmp_echo_ignore_all=1 in pod-b
# Expected: icmp_echo_ignore_all of pod-b
# Check: OV098
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns pod-b sysctl -qw net.ipv4.icmp_echo_ignore_all=1
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
