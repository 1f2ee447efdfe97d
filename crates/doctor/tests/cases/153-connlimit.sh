#!/bin/sh
# 153: a limit of connections drops new ones.
# Source: no report; a variant: connection limit rule
# Cause: FORWARD of b: ct count over 2 drop; client opens many
# Expected: rule with ct count drops new connections to pod-b
# Check: OV111 OV107
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
n=2; [ "$DO" = healthy ] && n=100000
ns b nft -f - <<NFT
table ip filter {
 set s {
 type ipv4_addr; flags dynamic; 
}
chain FORWARD {
 type filter hook forward priority 0; policy accept; oifname "cni0" tcp dport 80 ct state new add @s { ip daddr ct count over $n } counter drop; 
}
}
NFT
bg srv ip netns exec "$P-pod-b" python3 -m http.server 80
bg cl ip netns exec "$P-pod-a" python3 -c '
import socket,time
keep=[]
while 1:
    s=socket.socket(); s.settimeout(0.8)
    try: s.connect(("10.244.2.2",80)); print("bytes from",flush=True); keep.append(s)
    except OSError as e: print(e,flush=True)
    time.sleep(0.3); keep=keep[-40:]'
echo "$0: $DO is there"
