#!/bin/sh
# 119: an XDP program on the NIC drops the tunnel.
# Source: no report; a variant of 39 with XDP
# Cause: XDP program on nic0 of b drops UDP 8472
# Expected: XDP program of nic0 of b
# Check: OV106
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
dropper

[ "$DO" = healthy ] || ns b ip link set dev nic0 xdpgeneric obj "$RUN/d.o" sec xdp
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
