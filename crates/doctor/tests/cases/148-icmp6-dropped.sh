#!/bin/sh
# 148: a firewall without ICMPv6 keeps nodes from finding each other.
# Source: no report; a variant of moby/moby#48392: ip6tables without ICMPv6
# Cause: ip6 filter INPUT of b: policy drop, accepts UDP 8472 and established, not neighbour solicitations
# Expected: policy of ip6 filter INPUT drops ICMPv6 neighbour solicitation
# Check: OV071 OV036
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
x=; [ "$DO" = healthy ] && x='meta l4proto ipv6-icmp accept'
ns b nft -f - <<NFT
table ip6 filter {
 chain INPUT {
 type filter hook input priority 0; policy drop; ct state established,related accept; iifname "lo" accept; udp dport 8472 counter accept
$x
}
}
NFT
ip -n "$P-a" -6 neigh flush dev nic0; ip -n "$P-b" -6 neigh flush dev nic0
bg ping ip netns exec "$P-pod-a" ping -i 0.5 fd24:2::2
echo "$0: $DO is there"
