#!/bin/sh
# 15: a guest's TAP takes no GSO packets, although it has a virtio header.
# Source: Mirantis/virtlet#882 (same kind: virtio-win/kvm-guest-drivers-windows#1026).
# Cause: the emulator opened the TAP with IFF_VNET_HDR but switched no offload on (TUNSETOFFLOAD): tx-checksumming and
#   TSO are off at the TAP, so the host cuts and sums up every packet to the guest (2 to 3 times slower).
# Expected: "TAP vnet0: segmentation and checksums are off, its program (python3, PID …) did not enable them".
# Check: OV076
# One node: a
. "$(dirname "$0")/bed.sh"

hypervisor mcast_snooping 0; tap vnet0 vm; o=0x0; [ "$DO" = healthy ] && o=0xf
guest a vnet0 vm $o 0; ip -n "$P-vm" addr add 10.77.0.50/24 dev eth0; ns a sysctl -qw net.bridge.bridge-nf-call-iptables=0
bg sink ip netns exec "$P-vm" python3 -c 'import socket;s=socket.create_server(("10.77.0.50",9000))
while True:
  c=s.accept()[0]
  while c.recv(1<<20): pass'
sleep 0.5
bg send ip netns exec "$P-b" python3 -c 'import socket,time;c=socket.create_connection(("10.77.0.50",9000))
while True: c.sendall(bytes(1000000)); time.sleep(0.1)'
echo "$0: $DO is there"
