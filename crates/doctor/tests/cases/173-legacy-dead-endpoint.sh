#!/bin/sh
# 173: as 123, by iptables-legacy: a service's rule leads to a pod that is gone.
# Source: https://github.com/kubernetes/kubernetes/issues/19029 (kind: stale endpoint rule)
# Cause: DNAT of 10.96.0.10:80 to 10.244.2.9, which does not exist, in table nat of iptables-legacy
# Expected: DNAT rule to 10.244.2.9, which nobody has (neighbour failed on b)
# Check: OV109
. "$(dirname "$0")/bed.sh"

flannel
d=10.244.2.9; [ "$DO" = healthy ] && d=10.244.2.2
ns a iptables-legacy -t nat -N KUBE-SEP-X
ns a iptables-legacy -t nat -A KUBE-SEP-X -p tcp -j DNAT --to-destination $d:80
ns a iptables-legacy -t nat -A PREROUTING -d 10.96.0.10/32 -p tcp --dport 80 -j KUBE-SEP-X
connects 10.96.0.10
echo "$0: $DO is there"
