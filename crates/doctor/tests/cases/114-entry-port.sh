#!/bin/sh
# 114: a forwarding entry has another UDP port.
# Source: no report; a variant: entry with another port
# Cause: entry of a: dst 10.77.0.2 port 4790; b listens on 8472
# Expected: entry of flannel.1: port 4790, the other end has 8472
# Check: OV033
. "$(dirname "$0")/bed.sh"

underlay a b; node a 1; node b 2; knows b 1; knows a 2
[ "$DO" = healthy ] || { ns a bridge fdb del 02:f1:00:00:00:02 dev flannel.1 dst 10.77.0.2 self; ns a bridge fdb append 02:f1:00:00:00:02 dev flannel.1 dst 10.77.0.2 port 4790 self permanent; }
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
