#!/bin/sh
# 46: ufw does not know the tunnel's port.
# Source: https://github.com/k3s-io/k3s/issues/2935
# Cause: ufw's default for incoming packets is deny, and nobody allowed UDP 8472.
# Expected: "policy of ip filter INPUT is drop, and no rule accepts incoming UDP 8472".
# Check: OV071
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ufw b "$([ "$DO" = healthy ] && echo 'udp dport 8472 accept')" 'ip saddr 10.244.0.0/16 accept'
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
