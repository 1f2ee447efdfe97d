#!/bin/sh
# 166: kube-proxy (IPVS) gives a node the address of another node, which a service has as externalIP.
# Source: https://github.com/kubernetes/kubernetes/issues/127410
# Cause: kube-ipvs0 of a has 10.77.0.2, the address of node b: a delivers packets for b to itself
# Expected: kube-ipvs0 of a has the address of the tunnel's remote end 10.77.0.2
# Check: OV037 OV038
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
address=10.77.0.2; [ "$DO" = healthy ] && address=10.77.0.200
# This kernel has no dummy devices; kube-proxy's is down too.
ip -n "$P-a" link add kube-ipvs0 type ifb; ip -n "$P-a" addr add $address/32 dev kube-ipvs0
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
