#!/bin/sh
# 94: many senders fill one receiver's link.
# Source: https://github.com/sands-lab/nika (incast)
# Cause: four senders together send 38 Mbit/s to pod-b, whose port is limited to 20 Mbit/s.
# Expected: "tbf dropped +900".
# NIKA: incast_traffic_network_limitation
# Check: OV048 OV079
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
cat >"$RUN/udp.py" <<'PY'
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1] == 'receive':
    s.bind(('0.0.0.0', 9000))
    while True: s.recv(2000)
while True:
    for _ in range(int(sys.argv[2])): s.sendto(bytes(1200), ('10.244.2.2', 9000))
    time.sleep(0.01)
PY
ns b tc qdisc add dev veth-pod root tbf rate 20mbit burst 64k limit 128k
bg receive ip netns exec "$P-pod-b" python3 "$RUN/udp.py" receive
burst=10; [ "$DO" = healthy ] && burst=1
for sender in 1 2 3 4; do bg "send$sender" ip netns exec "$P-pod-a" python3 "$RUN/udp.py" send $burst; done
echo "$0: $DO is there"
