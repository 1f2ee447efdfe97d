#!/bin/sh
# 09: a Swarm sandbox keeps the address of a container that is gone.
# Source: moby/moby#52661 (earlier: #50232).
# Cause: a redeployed container took over 10.0.1.7 with another hardware address; the fixed neighbour entry in the
#   overlay's sandbox on the other node was not replaced, and vxlan0 answers ARP with it.
# Expected: "vxlan0's entry 10.0.1.7 = 02:42:0a:00:01:07 is stale: 10.0.1.7 is 02:42:0a:00:01:77 behind 10.77.0.2".
# NIKA: arp_cache_poisoning
# Check: OV069
. "$(dirname "$0")/bed.sh"

underlay a b; sandbox a; sandbox b
container a client 10.0.1.3 02:42:0a:00:01:03; container b web 10.0.1.7 02:42:0a:00:01:77
peer b 10.0.1.3 02:42:0a:00:01:03 10.77.0.1
stale=02:42:0a:00:01:07; [ "$DO" = healthy ] && stale=02:42:0a:00:01:77
peer a 10.0.1.7 $stale 10.77.0.2
bg ping ip netns exec "$P-client" ping -i 0.5 10.0.1.7
echo "$0: $DO is there"
