#!/bin/sh
# 88: a program reads its datagrams too slowly.
# Source: https://github.com/sands-lab/nika (receiver resource contention)
# Cause: the receiver in pod-b waits 20 ms after each datagram; its socket's buffer is full.
# Expected: "Udp RcvbufErrors +100".
# NIKA: receiver_resource_contention
# Check: OV031
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
cat >"$RUN/udp.py" <<'PY'
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); pause = float(sys.argv[2])
if sys.argv[1] == 'receive':
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384); s.bind(('0.0.0.0', 9000))
while True:
    if sys.argv[1] == 'receive': s.recv(2000)
    else: s.sendto(bytes(1000), ('10.244.2.2', 9000))
    time.sleep(pause)
PY
pause=0.02; [ "$DO" = healthy ] && pause=0
bg receive ip netns exec "$P-pod-b" python3 "$RUN/udp.py" receive $pause
sleep 0.5
gap=0.002; [ "$DO" = healthy ] && gap=0.02
bg send ip netns exec "$P-pod-a" python3 "$RUN/udp.py" send $gap
echo "$0: $DO is there"
