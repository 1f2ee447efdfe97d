#!/bin/sh
# 36: forwarding is off for one device.
# Source: https://github.com/moby/moby/issues/14185 (comment of 2015-07-22)
# Cause: systemd-networkd set forwarding of a device that it manages to 0; net.ipv4.ip_forward is still 1.
# Expected: "net.ipv4.conf.flannel.1.forwarding = 0".
# Check: OV068
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns b sysctl -qw net/ipv4/conf/flannel.1/forwarding=0
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
