#!/bin/sh
# 42: a remote VTEP does not answer ARP.
# Source: https://github.com/sands-lab/nika (host crash)
# Cause: node 10.77.0.9 is gone; while somebody sends, the entry is INCOMPLETE again and again, hardly ever FAILED.
# Expected: "10.77.0.9, next hop to 10.77.0.9, does not answer".
# Check: OV036
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
if [ "$DO" != healthy ]; then
  ip -n "$P-a" route add 10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink
  ip -n "$P-a" neigh add 10.244.9.0 lladdr 02:f1:00:00:00:09 dev flannel.1 nud permanent
  ns a bridge fdb append 02:f1:00:00:00:09 dev flannel.1 dst 10.77.0.9 self permanent
  bg lost ip netns exec "$P-pod-a" ping -i 0.2 10.244.9.2
fi
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
