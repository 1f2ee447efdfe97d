#!/bin/sh
# 129: the hosts of one network are in different multicast groups.
# Source: no report; a variant: two multicast groups
# Cause: vx100 of a: group 239.1.1.1, of b: 239.1.1.2
# Expected: groups differ
# Check: OV083
. "$(dirname "$0")/bed.sh"

overlay 100 100
g=239.1.1.2; [ "$DO" = healthy ] && g=239.1.1.1
for q in a:1:239.1.1.1 b:2:$g; do h=${q%%:*}; r=${q#*:}
 ip -n "$P-$h" link del vx100; ip -n "$P-$h" link add vx100 type vxlan id 100 dev nic0 local 10.77.0.${r%:*} group ${r#*:} dstport 4789; ip -n "$P-$h" link set vx100 mtu 1450 master br1 up
done
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
