#!/bin/sh
# 120: Docker's FORWARD policy keeps Incus instances from the outside.
# Source: https://github.com/canonical/lxd/issues/8716 (same kind: canonical/lxd#3387, lxc/incus#2733)
# Cause: policy of ip filter FORWARD is drop; incusbr0 is not Docker's
# Expected: policy of ip filter FORWARD drops packets from incusbr0 to nic0
# Check: OV073
# One node: a vm
. "$(dirname "$0")/bed.sh"

underlay a b
ip -n "$P-a" link add incusbr0 type bridge mcast_snooping 0; ip -n "$P-a" addr add 10.158.0.1/24 dev incusbr0; ip -n "$P-a" link set incusbr0 up
add vm; ip -n "$P-vm" link add eth0 type veth peer name veth-vm netns "$P-a"; ip -n "$P-a" link set veth-vm master incusbr0 up; ip -n "$P-vm" link set eth0 up
ns a nft -f - <<NFT
table inet incus {
 chain pstrt.incusbr0 {
 type nat hook postrouting priority 100; policy accept; ip saddr 10.158.0.0/24 ip daddr != 10.158.0.0/24 masquerade
}
 chain fwd.incusbr0 {
 type filter hook forward priority 0; policy accept; ip version 4 oifname "incusbr0" accept
 ip version 4 iifname "incusbr0" accept
}
 chain in.incusbr0 {
 type filter hook input priority 0; policy accept; iifname "incusbr0" udp dport { 53, 67 } accept
 iifname "incusbr0" tcp dport 53 accept
}
}
NFT
ip -n "$P-vm" addr add 10.158.0.9/24 dev eth0; ip -n "$P-vm" route add default via 10.158.0.1
p=drop; [ "$DO" = healthy ] && p=accept
ns a nft -f - <<NFT
table ip filter {
 chain DOCKER-USER {
}
 chain FORWARD {
 type filter hook forward priority 0; policy $p; counter jump DOCKER-USER
 oifname "docker0" ct state related,established counter accept
 iifname "docker0" counter accept
}
}
NFT
bg ping ip netns exec "$P-vm" ping -i 0.5 10.77.0.2
echo "$0: $DO is there"
