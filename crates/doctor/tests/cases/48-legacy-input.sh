#!/bin/sh
# 48: a rule of iptables-legacy drops the tunnel's packets.
# Source: https://github.com/sonic-net/sonic-buildimage/issues/9771
# Cause: an INPUT rule by default drops what is not named: UDP of the tunnel is not.
# Expected: "rule 3 of iptables-legacy filter INPUT drops incoming UDP 8472 from 10.77.0.1 to 10.77.0.2".
# Check: OV071
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ns b iptables-legacy -A INPUT -i lo -j ACCEPT
ns b iptables-legacy -A INPUT -p tcp -m multiport --dports 22,10250 -j ACCEPT
[ "$DO" = healthy ] && ns b iptables-legacy -A INPUT -p udp --dport 8472 -j ACCEPT
ns b iptables-legacy -A INPUT -i nic0 -p udp -j DROP
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
