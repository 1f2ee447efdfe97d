#!/bin/sh
# 08: thousands of rules, added again and again.
# Source: k3s-io/k3s#3117.
# Cause: a bug of iptables-nft left duplicates of each rule at every sync; each packet that is forwarded walks all
#   of them, and ksoftirqd is busy (slow, not broken).
# Expected: "chain FORWARD of ip filter has 6000 rules that each forwarded packet is compared with; 5999 are repeated".
# Check: OV074
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
rules=6000; [ "$DO" = healthy ] && rules=2
{ echo 'add table ip filter'
  echo 'add chain ip filter FORWARD { type filter hook forward priority 0; policy accept; }'
  echo 'add chain ip filter KUBE-POD-FW-X'; echo 'add rule ip filter KUBE-POD-FW-X mark and 0x10000 == 0x10000 accept'
  i=0; while [ $i -lt $rules ]; do i=$((i+1)); echo 'add rule ip filter FORWARD ip daddr 10.244.9.9 counter jump KUBE-POD-FW-X'; done
} | ns b nft -f -
bg sink ip netns exec "$P-pod-b" python3 -c 'import socket;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.bind(("10.244.2.2",9000))
while True: s.recv(2000)'
bg send ip netns exec "$P-pod-a" python3 -c 'import socket,time;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
while True:
  for _ in range(20): s.sendto(bytes(64),("10.244.2.2",9000))
  time.sleep(0.01)'
echo "$0: $DO is there"
