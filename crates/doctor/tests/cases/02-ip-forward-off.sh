#!/bin/sh
# 02: a node stopped forwarding.
# Source: openshift/origin#9931 (same kind: kubernetes-sigs/kubespray#680).
# Cause: restarting the host's network service set net.ipv4.ip_forward to 0; pods of this node get nothing from others.
# Expected: "node b does not forward (net.ipv4.ip_forward = 0), and it has a bridge of pods and a tunnel".
# Check: OV068
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns b sysctl -qw net.ipv4.ip_forward=0
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
