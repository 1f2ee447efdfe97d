#!/bin/sh
# 121: ufw drops DHCP and DNS of instances.
# Source: https://github.com/canonical/lxd/issues/14808 (same kind: lxc/incus-compose#195)
# Cause: policy drop of INPUT, no rule accepts UDP 67, 53 from incusbr0
# Expected: policy of ip filter INPUT drops DHCP/DNS of incusbr0
# Check: OV073
# One node: a vm
. "$(dirname "$0")/bed.sh"

incus
x=; [ "$DO" = healthy ] && x='iifname "incusbr0" counter accept'
ns a nft -f - <<NFT
table ip filter {
 chain INPUT {
 type filter hook input priority 0; policy drop; iifname "lo" accept
 ct state related,established counter accept
 tcp dport 22 counter accept
 icmp type echo-request accept
 $x
}
}
NFT
serve='
import socket,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(("",int(sys.argv[1])))
while 1: s.sendto(*s.recvfrom(999))'
bg srv ip netns exec "$P-a" python3 -c "$serve" 53
bg dhcp ip netns exec "$P-a" python3 -c "$serve" 67
bg cl ip netns exec "$P-vm" python3 -c '
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(("10.158.0.1",53)); s.settimeout(0.3)
while 1:
    try: s.send(b"q"); s.recv(9); print("bytes from",flush=True)
    except OSError as e: print(e,flush=True)
    time.sleep(0.2)'
echo "$0: $DO is there"
