#!/bin/sh
# 11: a Compose network has MTU 1500 on a host that has 1400.
# Source: docker/compose#3438, moby/moby#34981 and #22297.
# Cause: the host is a virtual machine on an overlay (MTU 1400); dockerd's --mtu does not apply to networks that
#   Compose makes: containers announce an MSS for 1500, and what answers with it is lost before the host, silently.
# Expected: "NAT from br-c0ffee (1500) to nic0 (1400) without MSS clamp".
# NIKA: mtu_mismatch
# Check: OV019
# One node: a app
. "$(dirname "$0")/bed.sh"

underlay a srv
ns srv ethtool -K nic0 tso off gso off # frames of the size they have on a wire
ip -n "$P-a" link set nic0 mtu 1400; ip -n "$P-sw" link set p-a mtu 1400
m=1500; [ "$DO" = healthy ] && m=1400
add app; ip -n "$P-a" link add br-c0ffee mtu $m type bridge; ip -n "$P-a" addr add 172.18.0.1/16 dev br-c0ffee; ip -n "$P-a" link set br-c0ffee up
ip -n "$P-app" link add eth0 mtu $m type veth peer name veth-app mtu $m netns "$P-a"; ip -n "$P-a" link set veth-app master br-c0ffee up
ip -n "$P-app" addr add 172.18.0.2/16 dev eth0; ip -n "$P-app" link set eth0 up; ip -n "$P-app" route add default via 172.18.0.1
ns a nft -f - <<NFT
add table ip nat
add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }
add rule ip nat POSTROUTING ip saddr 172.18.0.0/16 oifname != "br-c0ffee" masquerade
add table ip filter
add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }
add rule ip filter FORWARD oifname "br-c0ffee" ct state related,established accept
add rule ip filter FORWARD iifname "br-c0ffee" accept
NFT
bg web ip netns exec "$P-srv" python3 -c 'import socket,threading
s=socket.create_server(("10.77.0.2",8000))
def serve(c):
  try: c.recv(100); c.sendall(bytes(200000)); c.close()
  except OSError: pass
while True: threading.Thread(target=serve,args=(s.accept()[0],),daemon=True).start()'
sleep 0.5
bg get ip netns exec "$P-app" python3 -c 'import socket,time
while True:
  c=socket.create_connection(("10.77.0.2",8000),5); c.settimeout(5); c.sendall(b"GET"); n=0
  try:
    while True:
      d=c.recv(65536)
      if not d: break
      n+=len(d)
  except OSError: pass
  print(n,flush=True); c.close(); time.sleep(0.3)'
echo "$0: $DO is there"
