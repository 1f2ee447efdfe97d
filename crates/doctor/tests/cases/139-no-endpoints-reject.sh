#!/bin/sh
# 139: kube-proxy: a service has no endpoints.
# Source: https://github.com/kubernetes/kubernetes/pull/127318 (rule "has no endpoints" REJECT)
# Cause: KUBE-SERVICES rejects 10.96.0.10:80 with "has no endpoints"
# Expected: the rule that rejects TCP 80 to 10.96.0.10, with its comment
# Check: OV111
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns a nft -f - <<NFT
table ip filter {
 chain KUBE-SERVICES {
 ip daddr 10.96.0.10 tcp dport 80 counter reject comment "default/web has no endpoints"; 
}
 chain FORWARD {
 type filter hook forward priority 0; policy accept; ct state new counter jump KUBE-SERVICES; 
}
}
NFT
[ "$DO" = healthy ] && ns a nft -f - <<NFT
table ip nat {
 chain PREROUTING {
 type nat hook prerouting priority -100; policy accept; ip daddr 10.96.0.10 tcp dport 80 counter dnat to 10.244.2.2:80; 
}
}
NFT
connects 10.96.0.10
echo "$0: $DO is there"
