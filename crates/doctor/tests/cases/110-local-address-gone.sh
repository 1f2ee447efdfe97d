#!/bin/sh
# 110: the address of the NIC changed, the tunnel has the old one.
# Source: no report; a variant: NIC renumbered by DHCP
# Cause: nic0 of a has 10.77.0.11 now; flannel.1 has local 10.77.0.1; b sends to 10.77.0.1
# Expected: local 10.77.0.1 of flannel.1 is on no device of a
# Check: OV036
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || { ip -n "$P-a" addr flush dev nic0; ip -n "$P-a" addr add 10.77.0.11/24 dev nic0; ip -n "$P-a" route add default via 10.77.0.254; }
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
