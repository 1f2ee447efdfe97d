#!/bin/sh
# 35: containers lose the world after the network service restarts.
# Source: https://github.com/geerlingguy/ansible-role-docker/pull/158, https://github.com/moby/moby/issues/47966
# Cause: stopping the network service sets net.ipv4.ip_forward to 0 (a CIS benchmark in sysctl.d does, too).
# Expected: "net.ipv4.ip_forward = 0; bridge docker0, address translation".
# Check: OV068
# One node: a app
. "$(dirname "$0")/bed.sh"

underlay a
add app; ip -n "$P-a" link add docker0 type bridge; ip -n "$P-a" addr add 172.17.0.1/16 dev docker0; ip -n "$P-a" link set docker0 up
ip -n "$P-app" link add eth0 type veth peer name veth-app netns "$P-a"; ip -n "$P-a" link set veth-app master docker0 up
ip -n "$P-app" addr add 172.17.0.2/16 dev eth0; ip -n "$P-app" link set eth0 up; ip -n "$P-app" route add default via 172.17.0.1
ns a nft -f - <<NFT
add table ip nat
add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }
add rule ip nat POSTROUTING ip saddr 172.17.0.0/16 oifname != "docker0" masquerade
NFT
[ "$DO" = healthy ] || ns a sysctl -qw net.ipv4.ip_forward=0
bg ping ip netns exec "$P-app" ping -i 0.5 10.77.0.254
echo "$0: $DO is there"
