#!/bin/sh
# 85: a node drops connections to one port of its pods.
# Source: https://github.com/sands-lab/nika (http acl block)
# Cause: a rule of node b drops forwarded TCP to port 80, where pod-b listens.
# Expected: "drops TCP 80 from flannel.1 to 10.244.2.2, which listens there".
# NIKA: http_acl_block
# Check: OV073
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
[ "$DO" = healthy ] || ns b nft -f - <<NFT
add table ip filter
add chain ip filter FORWARD { type filter hook forward priority 0; policy accept; }
add rule ip filter FORWARD tcp dport 80 counter drop
NFT
cat >"$RUN/web.py" <<'PY'
import socket, sys, time
if sys.argv[1] == 'serve':
    with socket.create_server(('0.0.0.0', 80)) as server:
        while True: server.accept()[0].close()
while True:
    try: socket.create_connection(('10.244.2.2', 80), 1).close()
    except OSError: pass
    time.sleep(0.3)
PY
bg serve ip netns exec "$P-pod-b" python3 "$RUN/web.py" serve
bg ask ip netns exec "$P-pod-a" python3 "$RUN/web.py" ask
bg ping ip netns exec "$P-pod-a" ping -i 0.3 10.244.2.2
echo "$0: $DO is there"
