#!/bin/sh
# 41: the two ends have different VNIs.
# Source: https://github.com/sands-lab/nika (VNI mismatch)
# Cause: the VXLAN device of host b was made with VNI 101; packets arrive and no device knows their VNI.
# Expected: "VNI 100; b (10.77.0.2) has VNI 101".
# Check: OV034
. "$(dirname "$0")/bed.sh"

v=101; [ "$DO" = healthy ] && v=100
overlay 100 $v
bg ping ip netns exec "$P-guest-a" ping -i 0.5 10.100.0.2
echo "$0: $DO is there"
