#!/bin/sh
# 151: kube-proxy nftables mode: a service without endpoints.
# Source: https://github.com/kubernetes/kubernetes/issues/139628
# Cause: verdict map no-endpoint-services has 10.96.0.10 . tcp . 80 : goto reject-chain
# Expected: map entry no-endpoint-services 10.96.0.10:80 rejects
# Check: OV112
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
e=; d='elements = { 10.96.0.10 . tcp . 80 : goto service-x }'
[ "$DO" = healthy ] || { e='elements = { 10.96.0.10 . tcp . 80 comment "default/web" : goto reject-chain }'; d=; }
ns a nft -f - <<NFT
table ip kube-proxy {
 map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; $e
 }
 map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; $d
 }
 chain reject-chain {
 reject
}
 chain service-x {
 meta l4proto tcp dnat to 10.244.2.2:80
}
 chain services-in {
 ip daddr . meta l4proto . th dport vmap @no-endpoint-services
}
 chain services {
 ip daddr . meta l4proto . th dport vmap @service-ips
}
 chain filter-forward {
 type filter hook forward priority -110; policy accept; ct state new jump services-in
}
 chain nat-prerouting {
 type nat hook prerouting priority -100; policy accept; jump services
}
}
NFT
connects 10.96.0.10
echo "$0: $DO is there"
