#!/bin/sh
# 165: a server accepts too slowly: its queue is full, clients wait for seconds.
# Source: https://github.com/envoyproxy/envoy/issues/9659 (same kind: superradcompany/microsandbox#745)
# Cause: the server in pod-b has a backlog of 1 and accepts a connection per second
# Expected: ListenOverflows increase in pod-b; queue of port 80 full
# Check: OV116
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
slow=0.8; n=1; [ "$DO" = healthy ] && { slow=0; n=128; }
bg srv ip netns exec "$P-pod-b" python3 -c '
import socket,sys,time
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(("0.0.0.0",80)); s.listen(int(sys.argv[2]))
while 1: s.accept()[0].close(); time.sleep(float(sys.argv[1]))' $slow $n
bg cl ip netns exec "$P-pod-a" python3 -c '
import socket,threading,time
def go():
    while 1:
        s=socket.socket(); s.settimeout(0.8)
        try: s.connect(("10.244.2.2",80)); s.recv(1)
        except OSError: pass
        s.close(); time.sleep(0.1)
for i in range(8): threading.Thread(target=go).start()'
echo "$0: $DO is there"
