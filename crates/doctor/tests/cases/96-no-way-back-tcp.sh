#!/bin/sh
# 96: a pod's program accepts connections, and the pod has no route to the other node's pods.
# Source: https://github.com/containernetworking/cni/issues/623
# Cause: pod-b has a route to its own node's pods only; answers to connections of pod-a are not sent.
# Expected: "Ip OutNoRoutes +3; no default route".
# Check: OV099
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ip -n "$P-pod-b" route del default
bg serve ip netns exec "$P-pod-b" python3 -m http.server 8080
bg ask ip netns exec "$P-pod-a" python3 -c '
import socket, time
while True:
    try: socket.create_connection(("10.244.2.2", 8080), 0.3).close()
    except OSError: pass
    time.sleep(0.1)'
echo "$0: $DO is there"
