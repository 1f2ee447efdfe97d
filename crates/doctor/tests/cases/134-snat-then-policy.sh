#!/bin/sh
# 134: masquerading of pod-to-pod packets makes a network policy drop them.
# Source: https://github.com/projectcalico/calico/issues/2169
# Cause: node a masquerades pod traffic into the tunnel; node b allows the pod address only
# Expected: masquerade rule on a (source becomes 10.244.1.0), or rule on b that drops 10.244.1.0
# Check: OV111 OV073
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
ns b nft -f - <<NFT
table ip filter {
 set pods {
 type ipv4_addr; elements = { 10.244.1.2 } 
}
 chain cali-tw {
 ct state established,related accept; ip saddr @pods counter accept; counter drop; 
}
 chain FORWARD {
 type filter hook forward priority 0; policy accept; oifname "cni0" counter jump cali-tw; 
}
}
NFT
x='ip daddr 10.244.0.0/16 return'; [ "$DO" = healthy ] || x=
ns a nft -f - <<NFT
table ip nat {
 chain POSTROUTING {
 type nat hook postrouting priority 100; policy accept; $x
  ip saddr 10.244.1.0/24 oifname != "cni0" counter masquerade
}
}
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
