#!/bin/sh
# 142: Incus: ipv4_filtering drops a guest with another address.
# Source: https://github.com/lxc/incus/issues/746
# Cause: bridge table drops ARP of guest-b whose address is not 10.100.0.77
# Expected: rule of bridge incus fwd drops ARP from 10.100.0.2 at veth-guest
# Check: OV073
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
x=10.100.0.77; [ "$DO" = healthy ] && x=10.100.0.2
ns b nft -f - <<NFT
table bridge incus {
 chain fwd.guest.eth0 {
 type filter hook forward priority -200; policy accept;
  iifname "veth-guest" arp saddr ip $x accept
  iifname "veth-guest" ip saddr $x accept
  iifname "veth-guest" ether type arp counter drop
  iifname "veth-guest" ether type ip counter drop
}
}
NFT
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
