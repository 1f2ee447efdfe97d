#!/bin/sh
# 12: a guest's bridged frames are dropped by Docker's FORWARD policy.
# Source: seapath/ansible#909, docker/docs#7370, docker/for-linux#949.
# Cause: with br_netfilter (bridge-nf-call-iptables = 1) frames that only cross br1 go through iptables' FORWARD, whose
#   policy Docker has set to DROP: no guest on br1 is reached.
# Expected: "bridged frames of br1 go through FORWARD, whose policy is drop, and no rule accepts them".
# Check: OV073
# One node: a
. "$(dirname "$0")/bed.sh"

hypervisor mcast_snooping 0; tap vnet0 vm; guest a vnet0 vm 0xf 0; ip -n "$P-vm" addr add 10.77.0.50/24 dev eth0
ns a nft -f - <<NFT
add table ip filter
add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }
add chain ip filter DOCKER-USER
add rule ip filter FORWARD counter jump DOCKER-USER
add rule ip filter FORWARD oifname "docker0" ct state related,established counter accept
add rule ip filter FORWARD iifname "docker0" counter accept
NFT
v=1; [ "$DO" = healthy ] && v=0
ns a sysctl -qw net.bridge.bridge-nf-call-iptables=$v
bg ping ip netns exec "$P-b" ping -i 0.5 10.77.0.50
echo "$0: $DO is there"
