#!/bin/sh
# 102: calico: a rule for the source address sends pods the wrong way.
# Source: https://github.com/projectcalico/calico/issues/9293
# Cause: ip rule from 10.244.2.0/24 lookup 500, which has only a default route by nic0
# Expected: rule/table 500: packets of pods to 10.244.1.0/24 leave by nic0 untunnelled
# Check: OV104
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ip -n "$P-b" route add default via 10.77.0.254 dev nic0 table 500; ip -n "$P-b" route add 10.77.0.0/24 dev nic0 table 500
src=10.77.0.2; [ "$DO" = healthy ] || src=10.244.2.0/24
ip -n "$P-b" rule add pref 500 from $src lookup 500
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
