#!/bin/sh
# 45: ufw denies routed packets.
# Source: https://github.com/fr8r/fr8r-ansible/issues/107 (same kind: k3s-io/k3s#777)
# Cause: ufw's default for routed packets is deny: the policy of FORWARD is drop, and its chains accept answers only.
# Expected: "policy of ip filter FORWARD is drop, and no rule accepts packets from flannel.1 to cni0".
# Check: OV073
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ufw b 'udp dport 8472 accept' "$([ "$DO" = healthy ] && echo 'ip saddr 10.244.0.0/16 accept')"
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
