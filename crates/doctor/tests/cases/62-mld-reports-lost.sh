#!/bin/sh
# 62: a bridge with a querier never hears a guest's reports.
# Source: https://github.com/dfinity/ic/pull/11246 (same kind: lxc/incus#3294)
# Cause: a querier is there, and a firewall drops the guest's MLD reports: the bridge sends neighbour solicitations
#   for it to no port.
# Expected: "no member of ff02::1:ff00:1 at veth-guest of br1".
# Check: OV088
# One node: a guest-a
. "$(dirname "$0")/bed.sh"

overlay 100 100
ip -n "$P-a" link set br1 type bridge mcast_snooping 1 mcast_querier 1
if [ "$DO" != healthy ]; then
  ns a nft 'table bridge guard { chain pre { type filter hook prerouting priority 0; iifname "veth-guest" icmpv6 type mld2-listener-report drop; }; }'
fi
# The address joins its group anew.
for h in a b; do
  ip -n "$P-guest-$h" link set eth0 down; ip -n "$P-guest-$h" link set eth0 up
done
ip -n "$P-guest-a" addr add fd00::1/64 dev eth0 nodad; ip -n "$P-guest-b" addr add fd00::2/64 dev eth0 nodad
bg ping ip netns exec "$P-guest-b" ping -i 0.5 fd00::1
i=0; while [ "$DO" = healthy ] && [ $i -lt 50 ] && ! ns a bridge mdb show dev br1 | grep -q 'veth-guest.*ff02::1:ff00:1 '; do
  i=$((i+1)); sleep 0.2
done
echo "$0: $DO is there"
