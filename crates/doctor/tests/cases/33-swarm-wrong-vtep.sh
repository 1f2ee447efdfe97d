#!/bin/sh
# 33: a forwarding entry leads to another host.
# Source: https://github.com/moby/moby/issues/31588 (#35401)
# Cause: a container moved from host c to host b; the entry in the sandbox on host a was not replaced.
# Expected: "entry for 02:42:0a:00:01:77 leads to 10.77.0.3; it is web eth0, behind 10.77.0.2".
# Check: OV069
. "$(dirname "$0")/bed.sh"

underlay a b c; sandbox a; sandbox b; sandbox c
container a client 10.0.1.3 02:42:0a:00:01:03; container b web 10.0.1.7 02:42:0a:00:01:77
peer b 10.0.1.3 02:42:0a:00:01:03 10.77.0.1
to=10.77.0.3; [ "$DO" = healthy ] && to=10.77.0.2
peer a 10.0.1.7 02:42:0a:00:01:77 $to
bg ping ip netns exec "$P-client" ping -i 0.5 10.0.1.7
echo "$0: $DO is there"
