#!/bin/sh
# 156: VXLAN by multicast: too many groups on a host.
# Source: https://github.com/apache/cloudstack-docs/pull/22
# Cause: net.ipv4.igmp_max_memberships=1: the second VXLAN device cannot join its group and stays down
# Expected: vx200 is down: igmp_max_memberships 1 is used up
# Check: OV033
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
n=1; [ "$DO" = healthy ] && n=20
ns a sysctl -qw net.ipv4.igmp_max_memberships=$n
for q in a:1 b:2; do h=${q%:*}
 ip -n "$P-$h" link del vx100
 ip -n "$P-$h" link add vx50 type vxlan id 50 dev nic0 local 10.77.0.${q#*:} group 239.1.0.50 dstport 4789; ip -n "$P-$h" link add br50 mtu 1450 type bridge mcast_snooping 0; ip -n "$P-$h" link set br50 up; ip -n "$P-$h" link set vx50 mtu 1450 master br50 up
 ip -n "$P-$h" link add vx100 type vxlan id 100 dev nic0 local 10.77.0.${q#*:} group 239.1.0.100 dstport 4789; ip -n "$P-$h" link set vx100 mtu 1450 master br1; ip -n "$P-$h" link set vx100 up || :
done
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
