#!/bin/sh
# 07: a learned path MTU towards another node.
# Source: ovn-kubernetes/ovn-kubernetes#5153 and #3429 (same kind: projectcalico/calico#1709).
# Cause: an ICMP "fragmentation needed" (1300) about some packet between the nodes stays in the route cache
#   for ten minutes: everything between the two nodes, the tunnel included, has 1300 bytes although the wires have 1500.
# Expected: "the path MTU to 10.77.0.2 was learned: 1300, expires in … s; the overlay needs 1500".
# Check: OV070
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
if [ "$DO" != healthy ]; then
cat >"$RUN/frag.py" <<'PY'
import ctypes, os, socket, struct, sys
def enter(name):
    fd = os.open('/run/netns/' + name, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000): raise OSError(ctypes.get_errno(), name)
def csum(b):
    s = sum(struct.unpack('!%dH' % (len(b) // 2), b)); s = (s >> 16) + (s & 0xffff); s += s >> 16
    return ~s & 0xffff
enter(sys.argv[1]); u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.connect(('10.77.0.2', 9)); port = u.getsockname()[1]
enter(sys.argv[2])
ip = lambda p, s, d, n: struct.pack('!BBHHHBBH4s4s', 0x45, 0, n, 1, 0x4000, 64, p, 0, socket.inet_aton(s), socket.inet_aton(d))
quoted = ip(17, '10.77.0.1', '10.77.0.2', 1500) + struct.pack('!HHHH', port, 9, 1480, 0)
icmp = lambda c: struct.pack('!BBHHH', 3, 4, c, 0, 1300) + quoted
r = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
r.sendto(icmp(csum(icmp(0))), ('10.77.0.1', 0))
PY
python3 "$RUN/frag.py" "$P-a" "$P-sw"; ip -n "$P-a" route get 10.77.0.2
fi
bg sink ip netns exec "$P-pod-b" python3 -c 'import socket;s=socket.create_server(("10.244.2.2",9000))
while True:
  c=s.accept()[0]
  while c.recv(1<<20): pass'
sleep 0.5
bg send ip netns exec "$P-pod-a" python3 -c 'import socket,time;c=socket.create_connection(("10.244.2.2",9000))
while True: c.sendall(bytes(50000)); time.sleep(0.2)'
echo "$0: $DO is there"
