#!/bin/sh
# 106: calico: proxy ARP is off at a pod's device.
# Source: https://github.com/projectcalico/calico/issues/4186
# Cause: net.ipv4.conf.cali1234.proxy_arp=0: nobody answers for 169.254.1.1
# Expected: proxy_arp of cali1234 is 0; pod-b gets no answer for 169.254.1.1
# Check: OV102
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

calico

[ "$DO" = healthy ] || ns b sysctl -qw net.ipv4.conf.cali1234.proxy_arp=0
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
