#!/bin/sh
# 116: a rule prohibits pods' source.
# Source: no report; a variant of 92: prohibit rule
# Cause: b: ip rule from 10.244.2.0/24 to 10.244.1.0/24 prohibit by firewall policy for replies
# Expected: ip rule prohibit
# Check: OV104
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-b" rule add pref 90 from 10.244.2.0/24 prohibit
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
