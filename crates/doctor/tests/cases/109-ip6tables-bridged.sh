#!/bin/sh
# 109: Docker's ip6tables policy drops IPv6 of guests on another bridge.
# Source: https://github.com/moby/moby/issues/48365
# Cause: bridge-nf-call-ip6tables=1 and policy drop of ip6 filter FORWARD
# Expected: policy of ip6 filter FORWARD drops bridged frames of br1
# Check: OV073
# One node: b guest-b
. "$(dirname "$0")/bed.sh"

overlay 100 100
ns b nft -f - <<NFT
table ip6 filter {
 chain DOCKER-USER {
}
 chain FORWARD {
 type filter hook forward priority 0; policy drop; counter jump DOCKER-USER; oifname "docker0" ct state established,related counter accept; 
}
}
NFT
v=1; [ "$DO" = healthy ] && v=0
ns b sysctl -qw net.bridge.bridge-nf-call-ip6tables=$v
for q in a:1 b:2; do ip -n "$P-guest-${q%:*}" addr add fd10::${q#*:}/64 dev eth0 nodad; done
bg ping ip netns exec "$P-guest-a" ping -i 0.5 fd10::2
echo "$0: $DO is there"
