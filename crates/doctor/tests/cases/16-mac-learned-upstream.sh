#!/bin/sh
# 16: the bridge beside a guest learns the guest's address at its uplink.
# Source: kubevirt/kubevirt#1620.
# Cause: the node's bridge sends the guest's broadcasts back (hairpin at the pod's port); the bridge k6t-eth0 in the pod
#   (modelled; the report saw it with weave) then has the guest's address at eth0 and drops what comes from there for the guest, until the guest speaks again.
# Expected: "k6t-eth0 has learned the guest's address at eth0, not at tap0 (hairpin at veth-pod of cni0)".
# Check: OV075
# One node: a pod
. "$(dirname "$0")/bed.sh"

add a pod pod2
ip -n "$P-a" link add cni0 mtu 1450 type bridge; ip -n "$P-a" addr add 10.244.1.1/24 dev cni0; ip -n "$P-a" link set cni0 up
for p in pod pod2; do ip -n "$P-$p" link add eth0 mtu 1450 type veth peer name "veth-$p" mtu 1450 netns "$P-a"
  ip -n "$P-a" link set "veth-$p" master cni0 up; ip -n "$P-$p" link set eth0 up; ns $p sysctl -qw net.bridge.bridge-nf-call-iptables=0; done
ns a sysctl -qw net.bridge.bridge-nf-call-iptables=0
ip -n "$P-pod2" addr add 10.244.1.3/24 dev eth0
ip -n "$P-pod" link add k6t-eth0 mtu 1450 type bridge; ip -n "$P-pod" link set eth0 master k6t-eth0
ip -n "$P-pod" tuntap add dev tap0 mode tap vnet_hdr; ip -n "$P-pod" link set tap0 mtu 1450 master k6t-eth0; ip -n "$P-pod" link set k6t-eth0 up
add vm; guest pod tap0 vm 0xf 0; ip -n "$P-vm" link set eth0 mtu 1450; ip -n "$P-vm" addr add 10.244.1.2/24 dev eth0
[ "$DO" = healthy ] || ip -n "$P-a" link set veth-pod type bridge_slave hairpin on
bg arp ip netns exec "$P-vm" ping -i 0.3 10.244.1.99
bg ping ip netns exec "$P-pod2" ping -i 0.2 10.244.1.2
echo "$0: $DO is there"
