#!/bin/sh
# 55: the tunnel knows no other host.
# Source: https://github.com/sonic-net/sonic-buildimage/issues/9028
# Cause: the control plane never added the remote ends: the forwarding table of the VXLAN device is empty.
# Expected: "no default remote; …", and another host that sends here, or a guest that gets no answer.
# Check: OV083
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
[ "$DO" = healthy ] || { ip -n "$P-a" link del vx100
ip -n "$P-a" link add vx100 type vxlan id 100 dev nic0 local 10.77.0.1 dstport 4789
ip -n "$P-a" link set vx100 mtu 1450 master br1 up; }
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
