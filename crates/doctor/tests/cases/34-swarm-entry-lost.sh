#!/bin/sh
# 34: a forwarding entry of a live container is gone.
# Source: https://github.com/moby/moby/issues/52661 (comment of 2026-08-11)
# Cause: the neighbour entry is there, the forwarding entry of vxlan0 is not; frames have no VTEP.
# Expected: "neighbour 10.0.1.7 is at 02:42:0a:00:01:77; no forwarding entry for it, no default remote".
# Check: OV035
# One node: a 1-a client
. "$(dirname "$0")/bed.sh"

underlay a b; sandbox a; sandbox b
container a client 10.0.1.3 02:42:0a:00:01:03; container b web 10.0.1.7 02:42:0a:00:01:77
peer b 10.0.1.3 02:42:0a:00:01:03 10.77.0.1; peer a 10.0.1.7 02:42:0a:00:01:77 10.77.0.2
[ "$DO" = healthy ] || ns 1-a bridge fdb del 02:42:0a:00:01:77 dev vxlan0 dst 10.77.0.2 self
bg ping ip netns exec "$P-client" ping -i 0.5 10.0.1.7
echo "$0: $DO is there"
