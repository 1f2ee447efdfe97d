#!/bin/sh
# 152: Docker: containers in the host's IPv6 network are not announced.
# Source: https://github.com/docker/for-linux/issues/928
# Cause: container net fd71::100:0/112 is inside fd71::/64 of nic0; proxy_ndp 0
# Expected: proxy_ndp off / fd71::100:2 of docker0 is inside the network of nic0
# Check: OV114
# One node: a web
. "$(dirname "$0")/bed.sh"

add a b web
ip -n "$P-a" link add nic0 type veth peer name nic0 netns "$P-b"
for q in a:1 b:2; do ns ${q%:*} ethtool -K nic0 gro on; ip -n "$P-${q%:*}" addr add fd71::${q#*:}/64 dev nic0 nodad; ip -n "$P-${q%:*}" link set nic0 up; done
ns a sysctl -qw net.ipv6.conf.all.forwarding=1
ip -n "$P-a" link add docker0 type bridge mcast_snooping 0; ip -n "$P-a" addr add fd71::100:1/112 dev docker0 nodad; ip -n "$P-a" link set docker0 up
ip -n "$P-web" link add eth0 type veth peer name vethw netns "$P-a"; ip -n "$P-a" link set vethw master docker0 up
ip -n "$P-web" addr add fd71::100:2/112 dev eth0 nodad; ip -n "$P-web" link set eth0 up; ip -n "$P-web" -6 route add default via fd71::100:1
if [ "$DO" = healthy ]; then ns a sysctl -qw net.ipv6.conf.nic0.proxy_ndp=1; ip -n "$P-a" -6 neigh add proxy fd71::100:2 dev nic0; fi
bg ping ip netns exec "$P-b" ping -i 0.5 fd71::100:2
echo "$0: $DO is there"
