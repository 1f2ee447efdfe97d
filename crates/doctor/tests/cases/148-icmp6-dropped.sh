#!/bin/sh
# 148: a firewall without ICMPv6 keeps nodes from finding each other.
# Source: no report; a variant of moby/moby#48392: ip6tables without ICMPv6
# Cause: ip6 filter INPUT of b: policy drop, accepts UDP 8472 and established, not neighbour solicitations
# Expected: policy of ip6 filter INPUT drops ICMPv6 neighbour solicitation
# Check: OV071 OV036
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel6
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
