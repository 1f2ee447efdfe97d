#!/bin/sh
# 124: a stale conntrack entry sends UDP to a pod that is gone.
# Source: https://github.com/kubernetes/kubernetes/issues/125467
# Cause: the entry of a running UDP flow still translates to 10.244.2.9; the rule already says 10.244.2.2
# Expected: conntrack entry 10.96.0.10:53 -> 10.244.2.9 contradicts the DNAT rule
# Check: OV109
# One node: a pod-a b
. "$(dirname "$0")/bed.sh"

flannel
d=10.244.2.9; [ "$DO" = healthy ] && d=10.244.2.2
ns a nft -f - <<NFT
table ip nat {
 chain SVC {
 ip daddr 10.96.0.10 udp dport 53 counter dnat to $d:53; 
}
 chain PREROUTING {
 type nat hook prerouting priority -100; policy accept; counter jump SVC; 
}
}
NFT
bg srv ip netns exec "$P-pod-b" python3 -c '
import socket
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(("",53))
while 1: s.sendto(*s.recvfrom(999))'
bg cl ip netns exec "$P-pod-a" python3 -c '
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(("0.0.0.0",43145)); s.connect(("10.96.0.10",53)); s.setblocking(0)
while 1:
    try:
        s.send(b"q"); time.sleep(0.2); s.recv(9); print("bytes from",flush=True)
    except OSError as e: print(e,flush=True)
    time.sleep(0.2)'
# The first datagram makes the entry.
printed cl .
ns a nft flush chain ip nat SVC; ns a nft add rule ip nat SVC ip daddr 10.96.0.10 udp dport 53 counter dnat to 10.244.2.2:53
echo "$0: $DO is there"
