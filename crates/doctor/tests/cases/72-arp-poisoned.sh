#!/bin/sh
# 72: a guest's neighbour entry has a wrong hardware address.
# Source: https://github.com/sands-lab/nika (arp cache poisoning)
# Cause: guest-a has a permanent entry for 10.100.0.2 with an address that nobody has.
# Expected: "entry for 10.100.0.2 says 02:00:00:00:00:66; 10.100.0.2 is at guest-b eth0".
# NIKA: arp_cache_poisoning
# Check: OV069
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || ip -n "$P-guest-a" neigh replace 10.100.0.2 lladdr 02:00:00:00:00:66 dev eth0 nud permanent
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
