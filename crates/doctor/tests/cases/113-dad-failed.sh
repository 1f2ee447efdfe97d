#!/bin/sh
# 113: IPv6: a pod's address failed duplicate address detection.
# Source: https://github.com/moby/moby/issues/15840 (same kind: kubernetes/kubernetes#32291)
# Cause: another pod on cni0 has fd24:2::2; pod-b's address stays tentative dadfailed
# Expected: fd24:2::2 of pod-b: duplicate address detection failed
# Check: OV108
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

underlay a b
for q in a:1:2 b:2:1; do h=${q%%:*}; r=${q#*:}; i=${r%:*}
  ns $h sysctl -qw net.ipv6.conf.all.forwarding=1
  ip -n "$P-$h" addr add fd77::$i/64 dev nic0 nodad
  ip -n "$P-$h" link add flannel-v6.1 address 02:f6:00:00:00:0$i type vxlan id 1 dev nic0 local fd77::$i dstport 8472 nolearning ${VXOPT:-}
  ip -n "$P-$h" link set flannel-v6.1 mtu 1430 up; ip -n "$P-$h" addr add fd24:$i::/128 dev flannel-v6.1 nodad
  ip -n "$P-$h" link add cni0 mtu 1430 type bridge mcast_snooping 0; ip -n "$P-$h" addr add fd24:$i::1/64 dev cni0 nodad; ip -n "$P-$h" link set cni0 up
  add pod-$h; ip -n "$P-pod-$h" link add eth0 mtu 1430 type veth peer name veth-pod mtu 1430 netns "$P-$h"
  ip -n "$P-$h" link set veth-pod master cni0 up
  ip -n "$P-pod-$h" addr add fd24:$i::2/64 dev eth0 nodad; ip -n "$P-pod-$h" link set eth0 up; ip -n "$P-pod-$h" -6 route add default via fd24:$i::1
done
know6() { ip -n "$P-$1" -6 route add fd24:$2::/64 via fd24:$2:: dev flannel-v6.1 onlink
  ip -n "$P-$1" -6 neigh add fd24:$2:: lladdr $3 dev flannel-v6.1 nud permanent
  ns $1 bridge fdb append $3 dev flannel-v6.1 dst fd77::$2 self permanent; }

know6 a 2 02:f6:00:00:00:02; know6 b 1 02:f6:00:00:00:01
if [ "$DO" != healthy ]; then
 add other; ip -n "$P-other" link add eth0 type veth peer name veth-other mtu 1430 netns "$P-b"; ip -n "$P-b" link set veth-other master cni0 up
 ip -n "$P-other" link set eth0 mtu 1430 up; ip -n "$P-other" addr add fd24:2::2/128 dev eth0 nodad
 ip -n "$P-pod-b" addr del fd24:2::2/64 dev eth0; sleep 0.5; ip -n "$P-pod-b" addr add fd24:2::2/64 dev eth0; ip -n "$P-pod-b" -6 route replace default via fd24:2::1; sleep 2
 ip -n "$P-other" link set eth0 down
fi
bg ping ip netns exec "$P-pod-a" ping -i 0.5 fd24:2::2
echo "$0: $DO is there"
