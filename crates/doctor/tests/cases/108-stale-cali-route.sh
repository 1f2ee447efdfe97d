#!/bin/sh
# 108: calico: the route of a pod goes to another pod's old device.
# Source: https://github.com/projectcalico/calico/issues/10723
# Cause: 10.244.2.2 dev caliold scope link instead of cali1234
# Expected: route to 10.244.2.2 leads to caliold, pod-b is behind cali1234
# Check: OV103
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

underlay a b
for q in a:1 b:2; do h=${q%:*}; i=${q#*:}
  ip -n "$P-$h" link add vxlan.calico address 66:00:00:00:00:0$i type vxlan id 4096 dev nic0 local 10.77.0.$i dstport 4789 nolearning
  ip -n "$P-$h" link set vxlan.calico mtu 1450 up; ip -n "$P-$h" addr add 10.244.$i.0/32 dev vxlan.calico
  add pod-$h; ip -n "$P-pod-$h" link add eth0 mtu 1450 type veth peer name cali1234 mtu 1450 address ee:ee:ee:ee:ee:ee netns "$P-$h"
  ip -n "$P-pod-$h" addr add 10.244.$i.2/32 dev eth0; ip -n "$P-pod-$h" link set eth0 up
  ip -n "$P-pod-$h" route add 169.254.1.1 dev eth0 scope link; ip -n "$P-pod-$h" route add default via 169.254.1.1
  ip -n "$P-$h" link set cali1234 up; ns $h sysctl -qw net.ipv4.conf.cali1234.proxy_arp=1 net.ipv4.neigh.cali1234.proxy_delay=0
  ip -n "$P-$h" route add 10.244.$i.2 dev cali1234 scope link; ip -n "$P-$h" route add blackhole 10.244.$i.0/26
done
for q in a:2 b:1; do h=${q%:*}; i=${q#*:}
  ip -n "$P-$h" route add 10.244.$i.0/26 via 10.244.$i.0 dev vxlan.calico onlink
  ip -n "$P-$h" neigh add 10.244.$i.0 lladdr 66:00:00:00:00:0$i dev vxlan.calico nud permanent
  ns $h bridge fdb append 66:00:00:00:00:0$i dev vxlan.calico dst 10.77.0.$i self permanent
done

add old; ip -n "$P-b" link add caliold type veth peer name eth0 netns "$P-old"; ip -n "$P-b" link set caliold up; ip -n "$P-old" link set eth0 up
[ "$DO" = healthy ] || ip -n "$P-b" route replace 10.244.2.2 dev caliold scope link
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
