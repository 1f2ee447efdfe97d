#!/bin/sh
# 31: a host firewall was never opened for the tunnel.
# Source: https://github.com/flannel-io/flannel/issues/2055, https://github.com/k3s-io/k3s/issues/777
# Cause: ufw and firewalld drop what no rule allows; nobody allowed UDP 8472 between the nodes.
# Expected: "policy of inet filter input is drop, and no rule accepts incoming UDP 8472 from 10.77.0.1".
# Check: OV071
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
own=; [ "$DO" = healthy ] && own='add rule inet filter input udp dport 8472 ip saddr 10.77.0.0/24 accept'
ns b nft -f - <<NFT
add table inet filter
add chain inet filter input { type filter hook input priority 0; policy drop; }
add rule inet filter input ct state established,related accept
add rule inet filter input iifname "lo" accept
add rule inet filter input meta l4proto icmp accept
add rule inet filter input tcp dport { 22, 6443, 10250 } accept
$own
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
