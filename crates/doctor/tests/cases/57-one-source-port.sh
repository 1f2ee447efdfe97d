#!/bin/sh
# 57: all flows of the tunnel have one source port.
# Source: https://github.com/projectcalico/calico/pull/8790 (calico#8620)
# Cause: the range of source ports has one port, so routers and NICs cannot tell flows apart.
# Expected: "srcport 49152 49153: always 49152".
# Check: OV084
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

[ "$DO" = healthy ] || VXOPT="srcport 49152 49153"
flannel
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
