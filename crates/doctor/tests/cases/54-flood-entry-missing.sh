#!/bin/sh
# 54: EVPN's entries for addresses are there, and none for broadcasts.
# Source: https://github.com/FRRouting/frr/issues/19121
# Cause: routes of type 3 were received, but no entry for 00:00:00:00:00:00 was added: ARP reaches nobody.
# Expected: "no default remote; forwarding entries: 1, none for 00:00:00:00:00:00".
# Check: OV083
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
mac=$(ip -n "$P-guest-b" -br link show eth0 | awk '{print $3}')
ip -n "$P-a" link del vx100
ip -n "$P-a" link add vx100 type vxlan id 100 dev nic0 local 10.77.0.1 dstport 4789 nolearning
ip -n "$P-a" link set vx100 mtu 1450 master br1 up
ns a bridge fdb append "$mac" dev vx100 dst 10.77.0.2 self permanent
[ "$DO" = healthy ] && ns a bridge fdb append 00:00:00:00:00:00 dev vx100 dst 10.77.0.2 self permanent
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
