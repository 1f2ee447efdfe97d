#!/bin/sh
# 32: a second VXLAN device cannot be set up.
# Source: https://github.com/cilium/cilium/issues/2925 (#8990, #38581)
# Cause: flannel.1 has UDP 8472; cilium_vxlan (external) needs a socket of its own on that port: EADDRINUSE.
# Expected: "cilium_vxlan is down; the UDP socket on port 8472 belongs to flannel.1".
# Check: OV033
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
port=8472; [ "$DO" = healthy ] && port=8473
ip -n "$P-a" link add cilium_vxlan mtu 1450 type vxlan external dstport $port
ip -n "$P-a" link set cilium_vxlan up 2>/dev/null || [ "$DO" = up ]
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
