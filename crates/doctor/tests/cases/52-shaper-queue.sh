#!/bin/sh
# 52: a rate limit with seconds of queue.
# Source: https://github.com/containernetworking/plugins/pull/1025
# Cause: the bandwidth limit of a pod has a queue that takes seconds to send: all of its packets are late.
# Expected: "tbf: … bytes wait, … ms at its rate".
# NIKA: link_capacity_bottleneck
# Check: OV079
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
# A sender of 38 Mbit/s fills the queue even if it gets little of a CPU.
rate=2mbit limit=800000; [ "$DO" = healthy ] && rate=20mbit limit=140000
ns b tc qdisc add dev veth-pod root tbf rate $rate burst 65536 limit $limit
bg sink ip netns exec "$P-pod-b" python3 -c 'import socket;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.bind(("10.244.2.2",9000))
while True: s.recv(2000)'
sleep 0.3
n=4; [ "$DO" = healthy ] && n=1
bg send ip netns exec "$P-pod-a" python3 -c 'import socket,sys,time;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
while True:
  for _ in range(int(sys.argv[1])): s.sendto(bytes(1200),("10.244.2.2",9000))
  time.sleep(0.001)' $n
echo "$0: $DO is there"
