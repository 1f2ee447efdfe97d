#!/bin/sh
# 14: a guest's TAP drops bursts.
# Source: http://s3an.me.uk/blog/2015/10/12/windows-guest-tap-interface-drops-packets/ (Red Hat OpenStack Platform 13,
#   "High Packet Loss in the TX Queue of the Instance's Tap Interface", is the same kind).
# Cause: the guest's CPU is not always there; its TAP holds 500 packets (txqueuelen), what comes meanwhile is dropped.
# Expected: "vnet0 drops what its program does not read, txqueuelen 500".
# Check: OV046
# One node: a
. "$(dirname "$0")/bed.sh"

hypervisor mcast_snooping 0; tap vnet0 vm; ip -n "$P-a" link set vnet0 txqueuelen 500
d=3; [ "$DO" = healthy ] && d=0
guest a vnet0 vm 0xf $d; ip -n "$P-vm" addr add 10.77.0.50/24 dev eth0; ns a sysctl -qw net.bridge.bridge-nf-call-iptables=0
bg send ip netns exec "$P-b" python3 -c 'import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
while True:
  for _ in range(50): s.sendto(bytes(200),("10.77.0.50",9000))
  time.sleep(0.05)'
echo "$0: $DO is there"
