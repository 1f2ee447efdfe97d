#!/bin/sh
# 131: arp_ignore=8 on a node's NIC.
# Source: no report; a variant: arp_ignore as LVS real servers set it
# Cause: net.ipv4.conf.all.arp_ignore=8: b answers no ARP request
# Expected: arp_ignore 8 at nic0 of b
# Check: OV036
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || { ns b sysctl -qw net.ipv4.conf.all.arp_ignore=8; }
ns a ip neigh flush dev nic0; ip -n "$P-b" neigh flush dev nic0
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
