#!/bin/sh
# 101: tailscale: table 52 takes the pods of another node.
# Source: https://github.com/tailscale/tailscale/issues/14706 / k3s-io/k3s#7772
# Cause: ip rule 5270 from all lookup 52; table 52 has 10.244.1.0/24 dev tailscale0
# Expected: packets from/to 10.244.1.0/24 go by table 52 to tailscale0, not flannel.1
# Check: OV104
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ip -n "$P-b" tuntap add dev tailscale0 mode tun; ip -n "$P-b" link set tailscale0 mtu 1280 up; ip -n "$P-b" addr add 100.64.0.2/32 dev tailscale0
ip -n "$P-b" rule add pref 5270 lookup 52
ip -n "$P-b" route add 100.64.0.1 dev tailscale0 table 52
[ "$DO" = healthy ] || ip -n "$P-b" route add 10.244.1.0/24 dev tailscale0 table 52
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
