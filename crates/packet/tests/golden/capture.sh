#!/bin/sh
# Captures frames of a real kernel for crates/packet/tests/golden.rs: two network
# namespaces, a veth pair between them as wire, VXLAN over IPv4 and IPv6, and
# traffic of every format the crate views. Needs root, tcpdump, ip, ping, python3.
#
# usage: capture.sh DIRECTORY    (writes *.pcap there; see README.md)
set -eu
out=$1
a=golden-a-$$ b=golden-b-$$
cleanup() { ip netns del $a 2>/dev/null || true; ip netns del $b 2>/dev/null || true; }
trap cleanup EXIT INT TERM
ip netns add $a; ip netns add $b
for ns in $a $b; do
    # No router solicitations or group reports in between.
    ip netns exec $ns sysctl -qw net.ipv6.conf.default.router_solicitations=0 net.ipv6.conf.default.autoconf=0
done
ip link add eth0 netns $a address 02:00:00:00:00:0a type veth peer name eth0 netns $b address 02:00:00:00:00:0b
for side in "$a 1 0a" "$b 2 0b"; do
    set -- $side; ns=$1 n=$2 mac=$3; other=$((3 - n))
    ip -n $ns link set lo up
    ip -n $ns addr add 10.0.0.$n/24 dev eth0
    ip -n $ns addr add fd00::$n/64 dev eth0 nodad
    ip -n $ns link set eth0 up
    # The wire carries what a wire would: cut, and with finished checksums.
    ip netns exec $ns ethtool -K eth0 tso off gso off gro off tx off >/dev/null
    ip -n $ns link add vx4 address 02:00:00:04:00:$mac type vxlan id 100 local 10.0.0.$n remote 10.0.0.$other dstport 4789 udpcsum
    ip -n $ns link add vx6 address 02:00:00:06:00:$mac type vxlan id 16777215 local fd00::$n remote fd00::$other dstport 4789 udp6zerocsumtx udp6zerocsumrx
    ip -n $ns addr add 192.168.4.$n/24 dev vx4
    ip -n $ns addr add 192.168.6.$n/24 dev vx6
    ip -n $ns addr add fd06::$n/64 dev vx6 nodad
    ip -n $ns link set vx4 mtu 1450 up
    ip -n $ns link set vx6 mtu 1430 up
done
sleep 1
capture() { # name, filter, command...
    name=$1 filter=$2; shift 2
    ip netns exec $b tcpdump -q -i eth0 -s 0 --immediate-mode -U -w "$out/$name.pcap" "$filter" 2>/dev/null &
    pid=$!
    sleep 1
    ip netns exec $a "$@" >/dev/null 2>&1 || true
    sleep 1
    kill $pid; wait $pid 2>/dev/null || true
}
exchange() { # address: one TCP connection with 3000 bytes, and a UDP datagram
    ip netns exec $b python3 -c "
import socket, sys
family = socket.AF_INET6 if ':' in '$1' else socket.AF_INET
t = socket.socket(family); t.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); t.bind(('$1', 5201)); t.listen(1)
c, _ = t.accept(); n = 0
while True:
    d = c.recv(65536)
    if not d: break
c.close()" &
    sleep 0.5
}
capture ping4 'icmp' ping -c 1 -s 24 10.0.0.2
capture ping6 'icmp6' ping -c 1 -s 24 fd00::2
capture vxlan4-ping 'udp port 4789' ping -c 1 -s 24 192.168.4.2
capture vxlan6-ping 'udp port 4789' ping -c 1 -s 24 192.168.6.2
capture vxlan6-ping6 'udp port 4789' ping -c 1 -s 24 fd06::2
client() { echo "
import socket
f = socket.AF_INET6 if ':' in '$1' else socket.AF_INET
s = socket.create_connection(('$1', 5201)); s.sendall(bytes(range(256)) * 12); s.shutdown(1); s.recv(1)
u = socket.socket(f, socket.SOCK_DGRAM); u.sendto(b'overlane', ('$1', 9))"; }
for address in 10.0.0.2 fd00::2 192.168.4.2 fd06::2; do
    exchange $address
    case $address in
        10.*) capture tcp4 'tcp or udp port 9' python3 -c "$(client $address)" ;;
        fd00*) capture tcp6 'tcp or udp port 9' python3 -c "$(client $address)" ;;
        192*) capture vxlan4-tcp 'udp port 4789' python3 -c "$(client $address)" ;;
        *) capture vxlan6-tcp6 'udp port 4789' python3 -c "$(client $address)" ;;
    esac
done
# A packet that is too large for the next hop: fragmentation needed, packet too big.
ip -n $b link set vx4 mtu 1300
ip -n $b link set vx6 mtu 1300
ip netns exec $b sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip -n $a route add 192.168.4.200/32 via 10.0.0.2
ip -n $a route add fd06::200/128 via fd00::2
capture too-big 'icmp or icmp6' sh -c 'ping -c 1 -M do -s 1400 192.168.4.200; ping -c 1 -M do -s 1400 fd06::200'
