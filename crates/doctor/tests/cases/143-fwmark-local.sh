#!/bin/sh
# 143: rules of a removed proxy deliver pods' packets to the host.
# Source: https://github.com/cilium/cilium/issues/17292 (leftover ip rule fwmark 0x200/0xf00 lookup 2004)
# Cause: mangle marks packets from flannel.1 with 0x200; rule fwmark 0x200/0xf00 lookup 2004: local default dev lo
# Expected: mark rule and ip rule fwmark 0x200 lookup 2004 make the host take the packets
# Check: OV104
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ip -n "$P-b" rule add pref 9 fwmark 0x200/0xf00 lookup 2004; ip -n "$P-b" route add local default dev lo table 2004
[ "$DO" = healthy ] || ns b nft -f - <<NFT
table ip mangle {
 chain PREROUTING {
 type filter hook prerouting priority -150; policy accept; iifname "flannel.1" counter meta mark set 0x200; 
}
}
NFT
connects 10.244.2.2
echo "$0: $DO is there"
