#!/bin/sh
# 44: firewalld knows the tunnel's port, and not the pods.
# Source: https://github.com/flannel-io/flannel/issues/2055
# Cause: UDP 8472 is open, but cni0 and flannel.1 are in no trusted zone: packets between them are rejected.
# Expected: "rule … of inet firewalld filter_FORWARD drops packets from flannel.1 to cni0".
# Check: OV073
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
firewalld b 'udp dport 8472 accept' "$([ "$DO" = healthy ] && echo 'iifname { "cni0", "flannel.1" } accept')"
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
