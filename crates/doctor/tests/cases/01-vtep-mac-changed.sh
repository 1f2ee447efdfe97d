#!/bin/sh
# 01: a VTEP's hardware address changed behind its control plane.
# Source: flannel-io/flannel#1155 (same kind: #1330, #1795, k3s-io/k3s#9957).
# Cause: systemd-udevd's MACAddressPolicy=persistent gave flannel.1 of one node a new address; the other
#   nodes' fixed neighbour and forwarding entries hold the old one, its IP layer takes every packet for another host's.
# Expected: "entry for 10.244.2.0 says 02:f1:00:00:00:02, the VXLAN device at 10.77.0.2 has another address".
# Check: OV069
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-b" link set flannel.1 address 3a:7c:11:22:33:44
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
