#!/bin/sh
# 135: NOTRACK for the service network keeps DNAT from working.
# Source: https://github.com/kubernetes/kubernetes/issues/98758 (same kind: NOTRACK of node-local-dns); the leftover rule is a variant
# Cause: raw prerouting notrack for the service address: nat is never consulted, the packet leaves by the default route
# Expected: notrack rule for 10.96.0.10 before the DNAT rule
# Check: OV111
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
ns a nft -f - <<NFT
table ip nat {
 chain PREROUTING {
 type nat hook prerouting priority -100; policy accept; ip daddr 10.96.0.10 udp dport 53 counter dnat to 10.244.2.2:53; 
}
}
NFT
[ "$DO" = healthy ] || ns a nft -f - <<NFT
table ip raw {
 chain PREROUTING {
 type filter hook prerouting priority -300; policy accept; ip daddr 10.96.0.10 udp dport 53 counter notrack; 
}
}
NFT
bg srv ip netns exec "$P-pod-b" socat UDP4-RECVFROM:53,fork EXEC:cat
bg cl ip netns exec "$P-pod-a" sh -c 'while :; do echo bytes from | socat -t 0.3 - UDP4:10.96.0.10:53; sleep 0.3; done'
echo "$0: $DO is there"
