#!/bin/sh
# 171: one end of a VXLAN tunnel has the extension for group policies.
# Source: https://github.com/flannel-io/flannel/pull/750 (flannel-io/flannel#562)
# Cause: vx100 of a has gbp, vx100 of b has not: b drops packets with a policy of the sender
# Expected: gbp of a vx100, none at b vx100; rx_frame_errors of b
# Check: OV121 OV050
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
gbp=gbp; [ "$DO" = healthy ] && gbp=
ip -n "$P-a" link del vx100; ip -n "$P-a" link add vx100 type vxlan id 100 dev nic0 local 10.77.0.1 remote 10.77.0.2 dstport 4789 $gbp
ip -n "$P-a" link set vx100 mtu 1450 master br1 up
ns a nft 'table bridge group { chain pre { type filter hook prerouting priority 0; iifname "veth-guest" meta mark set 0x2a; }; }'
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
