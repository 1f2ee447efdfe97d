#!/bin/sh
# 150: Swarm: one end drops the plain packets of an encrypted network by rule.
# Source: https://github.com/moby/moby/issues/45635
# Cause: b: INPUT -p udp --dport 4789 -m policy --dir in --pol none -m bpf (VNI 4097) -j DROP; a does not encrypt
# Expected: rule of INPUT (policy none, VNI 4097) drops UDP 4789
# Check: OV111
# One node: b 1-b web
. "$(dirname "$0")/bed.sh"

underlay a b; sandbox a; sandbox b
container a client 10.0.1.3 02:42:0a:00:01:03; container b web 10.0.1.7 02:42:0a:00:01:77
peer b 10.0.1.3 02:42:0a:00:01:03 10.77.0.1; peer a 10.0.1.7 02:42:0a:00:01:77 10.77.0.2
[ "$DO" = healthy ] || ns b iptables -A INPUT -p udp -m policy --dir in --pol none -m udp --dport 4789 -m bpf --bytecode "6,177 0 0 0,64 0 0 12,84 0 0 4294967040,21 1 0 1048832,6 0 0 0,6 0 0 4294967295" -j DROP
bg ping ip netns exec "$P-client" ping -i 0.5 10.0.1.7
echo "$0: $DO is there"
