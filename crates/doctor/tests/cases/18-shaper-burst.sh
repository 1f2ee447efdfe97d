#!/bin/sh
# 18: a pod's bandwidth limit lets far less through than it says.
# Source: ovn-kubernetes/ovn-kubernetes#880 (policing; same kind: containernetworking/plugins#609, mininet/mininet#1252).
# Cause: the limit's burst (and queue) is smaller than the bursts that TCP and GSO make: it drops, TCP backs off, and
#   a limit of 2 Gbit/s gives a fraction.
# (Here by tbf: this kernel has no policing.)
# Expected: "tbf at veth-pod: burst 4 KB for 2 Gbit/s is less than one GSO packet / 2 µs; it drops".
# NIKA: link_capacity_bottleneck
# Check: OV077
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
lim='burst 4kb limit 8kb'; [ "$DO" = healthy ] && lim='burst 1mb limit 4mb'
ns b tc qdisc add dev veth-pod root tbf rate 2gbit $lim
bg sink ip netns exec "$P-pod-b" python3 -c 'import socket,time;s=socket.create_server(("10.244.2.2",9000))
while True:
  c=s.accept()[0]; n=0; t=time.time()
  while True:
    d=c.recv(1<<20)
    if not d: break
    n+=len(d)
    if time.time()-t>1: print("Mbit/s",n*8//1000000,flush=True); n=0; t=time.time()'
sleep 0.5
bg send ip netns exec "$P-pod-a" python3 -c 'import socket,time;c=socket.create_connection(("10.244.2.2",9000));e=time.time()+40
while time.time()<e: c.sendall(bytes(1000000)); time.sleep(0.004)'
echo "$0: $DO is there"
