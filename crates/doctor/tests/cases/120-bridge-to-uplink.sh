#!/bin/sh
# 120: Docker's FORWARD policy keeps Incus instances from the outside.
# Source: https://github.com/canonical/lxd/issues/8716 (same kind: canonical/lxd#3387, lxc/incus#2733)
# Cause: policy of ip filter FORWARD is drop; incusbr0 is not Docker's
# Expected: policy of ip filter FORWARD drops packets from incusbr0 to nic0
# Check: OV073
# One node: a vm
. "$(dirname "$0")/bed.sh"

incus
p=drop; [ "$DO" = healthy ] && p=accept
ns a nft -f - <<NFT
table ip filter {
 chain DOCKER-USER {
}
 chain FORWARD {
 type filter hook forward priority 0; policy $p; counter jump DOCKER-USER
 oifname "docker0" ct state related,established counter accept
 iifname "docker0" counter accept
}
}
NFT
bg ping ip netns exec "$P-vm" ping -i 0.5 10.77.0.2
echo "$0: $DO is there"
