#!/bin/sh
# 115: a permanent ARP entry for the other node has an old MAC.
# Source: no report; NIKA arp_cache_poisoning, on the underlay
# Cause: neigh 10.77.0.2 dev nic0 permanent with the MAC of the replaced NIC
# Expected: entry for 10.77.0.2 at nic0 of a
# Check: OV069
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-a" neigh replace 10.77.0.2 lladdr 02:de:ad:00:00:01 dev nic0 nud permanent
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
