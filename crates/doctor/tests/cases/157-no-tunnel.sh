#!/bin/sh
# 157: k3s on Raspberry Pi: no VXLAN device (module missing).
# Source: https://github.com/k3s-io/k3s/issues/4234
# Cause: b has no flannel.1 and no routes; a sends to it
# Expected: b has no tunnel; UDP 8472 has no socket at b
# Check: OV033
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-b" link del flannel.1
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
