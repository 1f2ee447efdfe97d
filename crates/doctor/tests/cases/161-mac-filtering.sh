#!/bin/sh
# 161: a guest behind MAC filtering sends from another address: a container's or a new NIC's.
# Source: https://github.com/containernetworking/plugins/pull/639 (macspoofchk; Incus: security.mac_filtering)
# Cause: bridge rule of b drops frames from veth-guest whose source is not the address that the guest had
# Expected: the rule drops all frames of guest-b
# Check: OV073
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
mac=$(ip -n "$P-guest-b" -br link show eth0 | awk '{print $3}')
[ "$DO" = healthy ] || ip -n "$P-guest-b" link set eth0 address 02:00:00:00:0b:0b
ns b nft -f - <<NFT
table bridge incus {
 chain fwd.vm.eth0 {
 type filter hook forward priority -200; policy accept; iifname "veth-guest" ether saddr != $mac drop
}
 chain in.vm.eth0 {
 type filter hook input priority -200; policy accept; iifname "veth-guest" ether saddr != $mac drop
}
}
NFT
bg ping ip netns exec "$P-guest-b" ping -i 0.5 10.100.0.1
echo "$0: $DO is there"
