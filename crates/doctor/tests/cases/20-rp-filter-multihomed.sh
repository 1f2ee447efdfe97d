#!/bin/sh
# 20: strict reverse-path filtering on a node with two NICs.
# Source: projectcalico/calico#6051 (same kind: cilium/cilium#13130).
# Cause: node b's VTEP address is on nic1; packets of node a come in at nic1 by a router, but node b would answer by
#   nic0, which is in node a's network: rp_filter = 1 drops them before the tunnel ("no decapsulation").
# Expected: "rp_filter drops the tunnel's packets from 10.77.0.1 at nic1".
# Check: OV042
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

underlay a b
# A second network, 10.78.0.0/24, with node b's other NIC; the switch routes between the two.
ip -n "$P-sw" link add br2 type bridge mcast_snooping 0; ip -n "$P-sw" addr add 10.78.0.254/24 dev br2; ip -n "$P-sw" link set br2 up
ns sw sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.all.send_redirects=0
ip -n "$P-b" link add nic1 type veth peer name p-b1 netns "$P-sw"; ip -n "$P-sw" link set p-b1 master br2 up
ip -n "$P-b" addr add 10.78.0.2/24 dev nic1; ip -n "$P-b" link set nic1 up
v=1; [ "$DO" = healthy ] && v=2
ns b sysctl -qw net.ipv4.conf.all.rp_filter=$v net.ipv4.conf.nic1.rp_filter=$v
node a 1; node b 2; ip -n "$P-b" link del flannel.1
ip -n "$P-b" link add flannel.1 address 02:f1:00:00:00:02 type vxlan id 1 dev nic1 local 10.78.0.2 dstport 8472 nolearning
ip -n "$P-b" link set flannel.1 mtu 1450 up; ip -n "$P-b" addr add 10.244.2.0/32 dev flannel.1
knows b 1; knows a 2; ns a bridge fdb del 02:f1:00:00:00:02 dev flannel.1 dst 10.77.0.2 self
ns a bridge fdb append 02:f1:00:00:00:02 dev flannel.1 dst 10.78.0.2 self permanent
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
