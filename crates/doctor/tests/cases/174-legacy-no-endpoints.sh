#!/bin/sh
# 174: as 139, by iptables-legacy: kube-proxy rejects connections to a service without endpoints.
# Source: https://github.com/kubernetes/kubernetes/issues/87426 (kind: rules of iptables-legacy)
# Cause: REJECT of 10.96.0.10:80 in table filter of iptables-legacy, "has no endpoints"
# Expected: counter of the rule with its comment
# Check: OV111
# One node: a pod-a
. "$(dirname "$0")/bed.sh"

flannel
if [ "$DO" = healthy ]; then
  ns a iptables-legacy -t nat -A PREROUTING -d 10.96.0.10/32 -p tcp --dport 80 -j DNAT --to-destination 10.244.2.2:80
else
  ns a iptables-legacy -N KUBE-SERVICES
  ns a iptables-legacy -A FORWARD -j KUBE-SERVICES
  ns a iptables-legacy -A KUBE-SERVICES -d 10.96.0.10/32 -p tcp --dport 80 -m comment --comment "default/web has no endpoints" -j REJECT
fi
connects 10.96.0.10
echo "$0: $DO is there"
