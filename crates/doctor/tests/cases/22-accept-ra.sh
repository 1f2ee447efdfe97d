#!/bin/sh
# 22: a host loses its IPv6 default route when containers come.
# Source: moby/moby#43466, docker/for-linux#1373, k3s-io/k3s#5019.
# Cause: the engine sets net.ipv6.conf.all.forwarding = 1; with accept_ra = 1 the kernel then ignores router
#   advertisements, and the default route that came by one expires. VTEPs in other networks cannot be reached any more.
# Expected: "no IPv6 route to fd88::2; nic0 ignores router advertisements (forwarding = 1, accept_ra = 1)".
# Check: OV072
# One node: a
. "$(dirname "$0")/bed.sh"

add a b
ip -n "$P-a" link add nic0 type veth peer name nic0 netns "$P-b"
for q in a:1 b:2; do ip -n "$P-${q%:*}" link set nic0 up; ns "${q%:*}" ethtool -K nic0 gro on; ip -n "$P-${q%:*}" addr add "fd7${q#*:}::${q#*:}/64" dev nic0 nodad; done
# The routers' part: node a learned its default route from node b's advertisement; it expired.
ip -n "$P-b" addr add fd71::fe/64 dev nic0 nodad; ns b sysctl -qw net.ipv6.conf.all.forwarding=1
if [ "$DO" = healthy ]; then ns a sysctl -qw net.ipv6.conf.nic0.accept_ra=2; fi
ns a sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv4.ip_forward=1
[ "$DO" = healthy ] && ip -n "$P-a" -6 route add default via fd71::fe dev nic0 proto ra metric 1024 expires 1800
ip -n "$P-b" -6 route add fd71::/64 dev nic0 2>/dev/null || :
ip -n "$P-a" link add vxlan6 type vxlan id 6 local fd71::1 remote fd72::2 dstport 4789
ip -n "$P-b" link add vxlan6 type vxlan id 6 local fd72::2 remote fd71::1 dstport 4789
for q in a:1 b:2; do ip -n "$P-${q%:*}" link set vxlan6 mtu 1430 up; ip -n "$P-${q%:*}" addr add "10.99.0.${q#*:}/24" dev vxlan6; done
bg ping ip netns exec "$P-a" ping -i 0.5 10.99.0.2
echo "$0: $DO is there"
