#!/bin/sh
# 170: firewalld in a container flushes the rules of Docker's resolver.
# Source: https://github.com/moby/libnetwork/issues/1938
# Cause: 127.0.0.11:53 is no longer translated to the port at which dockerd listens in the container
# Expected: datagrams to 127.0.0.11 reach no socket; dockerd listens at port 43458 there
# Check: OV117
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] && ns pod-b nft -f - <<NFT
table ip nat {
 chain OUTPUT {
 type nat hook output priority -100; policy accept; ip daddr 127.0.0.11 udp dport 53 counter dnat to 127.0.0.11:43458
}
}
NFT
bg dns ip netns exec "$P-pod-b" python3 -c '
import socket
s=socket.socket(type=socket.SOCK_DGRAM); s.bind(("127.0.0.11",43458))
while 1: s.sendto(*s.recvfrom(2000))'
bg ask ip netns exec "$P-pod-b" python3 -c '
import socket,time
while 1:
    s=socket.socket(type=socket.SOCK_DGRAM); s.settimeout(0.3); s.connect(("127.0.0.11",53))
    try: s.send(b"x"); s.recv(9)
    except OSError: pass
    s.close(); time.sleep(0.2)'
echo "$0: $DO is there"
