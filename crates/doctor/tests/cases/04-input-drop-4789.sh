#!/bin/sh
# 04: a network plug-in's rules drop everybody else's VXLAN on its port.
# Source: projectcalico/calico#6752.
# Cause: calico allows UDP 4789 from its own nodes and drops the rest by port, whatever the VNI; a second
#   tunnel of the host (VNI 555001, to a machine outside of the cluster) gets nothing.
# Expected: "rule … of ip filter cali-INPUT drops UDP 4789 from 10.77.0.3".
# Check: OV071
# One node: a
. "$(dirname "$0")/bed.sh"

underlay a b c
vx() { ip -n "$P-$1" link add "$2" type vxlan id "$3" dev nic0 local "$4" dstport 4789 nolearning; ip -n "$P-$1" link set "$2" mtu 1450 up; }
vx a vxlan.calico 4096 10.77.0.1; vx b vxlan.calico 4096 10.77.0.2; vx a peerpod 555001 10.77.0.1; vx c peerpod 555001 10.77.0.3
for h in a:1 b:2; do ip -n "$P-${h%:*}" addr add "192.168.${h#*:}.0/24" dev vxlan.calico; done
ns a bridge fdb append 00:00:00:00:00:00 dev vxlan.calico dst 10.77.0.2; ns b bridge fdb append 00:00:00:00:00:00 dev vxlan.calico dst 10.77.0.1
ns a bridge fdb append 00:00:00:00:00:00 dev peerpod dst 10.77.0.3; ns c bridge fdb append 00:00:00:00:00:00 dev peerpod dst 10.77.0.1
ip -n "$P-a" addr add 10.99.0.1/24 dev peerpod; ip -n "$P-c" addr add 10.99.0.3/24 dev peerpod
others='add rule ip filter cali-INPUT udp dport 4789 fib daddr type local counter drop'
[ "$DO" = healthy ] && others=
ns a nft -f - <<NFT
add table ip filter
add chain ip filter INPUT { type filter hook input priority 0; policy accept; }
add chain ip filter cali-INPUT
add set ip filter cali40all-vxlan-net { type ipv4_addr; elements = { 10.77.0.1, 10.77.0.2 }; }
add rule ip filter INPUT counter jump cali-INPUT
add rule ip filter cali-INPUT udp dport 4789 ip saddr @cali40all-vxlan-net fib daddr type local counter accept
$others
NFT
bg ping ip netns exec "$P-c" ping -i 0.5 10.99.0.1
echo "$0: $DO is there"
