#!/bin/sh
# 160: a pod does not reach a service whose endpoint is on the same node.
# Source: https://github.com/kelseyhightower/kubernetes-the-hard-way/issues/561 (kubernetes/kubernetes#87426)
# Cause: net.bridge.bridge-nf-call-iptables of b is 0: the endpoint's answer crosses cni0 without the
#   translation back, so the client gets it from an unknown address
# Expected: bridge-nf-call-iptables = 0 and a rule that translates to a port of cni0
# Check: OV115
# One node: b pod-b pod-c
. "$(dirname "$0")/bed.sh"

flannel
add pod-c; ip -n "$P-pod-c" link add eth0 mtu 1450 type veth peer name veth-c mtu 1450 netns "$P-b"
ip -n "$P-b" link set veth-c master cni0 up; ip -n "$P-pod-c" addr add 10.244.2.3/24 dev eth0
ip -n "$P-pod-c" link set eth0 up; ip -n "$P-pod-c" route add default via 10.244.2.1
n=0; [ "$DO" = healthy ] && n=1
ns b sysctl -qw net.bridge.bridge-nf-call-iptables=$n
ns b nft -f - <<NFT
table ip nat {
 chain PREROUTING {
 type nat hook prerouting priority -100; policy accept; ip daddr 10.96.0.10 tcp dport 80 counter dnat to 10.244.2.2:80;
}
}
NFT
connects 10.96.0.10 pod-c
echo "$0: $DO is there"
