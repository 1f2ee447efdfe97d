#!/bin/sh
# 133: Swarm: one end of an encrypted network expects ESP, the other sends plain.
# Source: https://github.com/moby/moby/issues/30766
# Cause: b has an xfrm policy in that requires ESP for UDP 4789 from a; a has no policy
# Expected: xfrm policy of b drops (XfrmInTmplMismatch)
# Check: OV110
# One node: b 1-b web
. "$(dirname "$0")/bed.sh"

underlay a b; sandbox a; sandbox b
container a client 10.0.1.3 02:42:0a:00:01:03; container b web 10.0.1.7 02:42:0a:00:01:77
peer b 10.0.1.3 02:42:0a:00:01:03 10.77.0.1; peer a 10.0.1.7 02:42:0a:00:01:77 10.77.0.2
[ "$DO" = healthy ] || ip -n "$P-b" xfrm policy add src 10.77.0.1 dst 10.77.0.2 proto udp dport 4789 dir in tmpl src 10.77.0.1 dst 10.77.0.2 proto esp reqid 13681891 mode transport
bg ping ip netns exec "$P-client" ping -i 0.5 10.0.1.7
echo "$0: $DO is there"
