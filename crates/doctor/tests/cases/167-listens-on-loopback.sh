#!/bin/sh
# 167: a program in a container listens on 127.0.0.1 only.
# Source: https://github.com/GoogleCloudPlatform/cloud-sdk-docker/issues/104 (same kind: microsoft/batch-processing-kit#15)
# Cause: the server of pod-b is bound to 127.0.0.1:80; other pods' connections are refused
# Expected: port 80 of pod-b listens on 127.0.0.1 only
# Check: OV117
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
at=127.0.0.1; [ "$DO" = healthy ] && at=0.0.0.0
bg srv ip netns exec "$P-pod-b" python3 -m http.server --bind $at 80
bg cl ip netns exec "$P-pod-a" python3 -c '
import socket,time
while 1:
    s=socket.socket(); s.settimeout(0.8)
    try: s.connect(("10.244.2.2",80))
    except OSError: pass
    s.close(); time.sleep(0.2)'
echo "$0: $DO is there"
