#!/bin/sh
# 06: one node's VXLAN device has another UDP port.
# Source: projectcalico/calico#10692.
# Cause: an environment variable of the DaemonSet kept the port of one node's device at 4799, the others have 4789.
# Expected: "port of the device at 10.77.0.2 is 4799, here 4789".
# Check: OV033 OV063
. "$(dirname "$0")/bed.sh"

pb=4799; [ "$DO" = healthy ] && pb=4789
underlay a b; node a 1 4789; node b 2 $pb; knows a 2; knows b 1
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
