#!/bin/sh
# 140: an eBPF filter that another CNI left behind drops the tunnel.
# Source: https://github.com/cilium/cilium/issues/17292
# Cause: clsact ingress of nic0 of b has a bpf filter that drops UDP 8472
# Expected: tc filter (bpf program) at ingress of nic0 of b
# Check: OV048
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

flannel
dropper

[ "$DO" = healthy ] || { ns b tc qdisc add dev nic0 clsact; ns b tc filter add dev nic0 ingress prio 1 bpf da obj "$RUN/d.o" sec tc; }
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
