#!/bin/sh
# 136: doNotTrack makes replies INVALID.
# Source: https://github.com/projectcalico/calico/issues/2609
# Cause: requests from the tunnel are not tracked; the reply has no connection and is dropped as invalid
# Expected: rule "ct state invalid drop" on b, because of the notrack rule
# Check: OV111
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
x=; [ "$DO" = healthy ] || x='iifname "flannel.1" counter notrack'
ns b nft -f - <<NFT
table ip raw {
 chain PREROUTING {
 type filter hook prerouting priority -300; policy accept; $x
}
}
table ip filter {
 chain FORWARD {
 type filter hook forward priority 0; policy accept; ct state invalid counter drop; 
}
}
NFT
connects 10.244.2.2
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
