# Test hosts of the cases; sourced by each. `sh CASE.sh up|healthy|down`: build the fault, the same
# without it, or remove all. PREFIX names the namespaces. Each case has in its head the fault as
# people reported it, `Check:`, the codes that name its cause, `One node:`, the namespaces that one
# administrator sees, and `NIKA:`, its name there, if it is a fault of sands-lab/nika.
set -eu
P=${PREFIX:-case}; RUN=${RUN:-/tmp/$P-run}; DO=${1:-up}
ns() { n=$1; shift; ip netns exec "$P-$n" "$@"; }
bg() { f=$1; shift; "$@" >"$RUN/$f.log" 2>&1 & echo $! >>"$RUN/pids"; }
# Waits until the last program of bg has printed a word, or has ended.
printed() { # log word
  while ! grep -q "$2" "$RUN/$1.log"; do
    kill -0 "$(tail -n 1 "$RUN/pids")" 2>/dev/null || { cat "$RUN/$1.log" >&2; exit 1; }
    sleep 0.1
  done
}
down() {
  [ -f "$RUN/pids" ] && while read -r p; do kill "$p" 2>/dev/null || :; done <"$RUN/pids"
  sleep 0.3
  if [ -f "$RUN/group" ]; then rmdir "$(cat "$RUN/group")" 2>/dev/null || :; fi
  for n in $(ip netns list | awk '{print $1}' | grep "^$P-" || :); do ip netns del "$n"; done
  rm -rf "$RUN"
}
add() { for n in "$@"; do ip netns add "$P-$n"; ip -n "$P-$n" link set lo up; done; }
# A switch with the hosts' NICs as ports; the switch itself is their gateway.
underlay() {
  add sw; ip -n "$P-sw" link add br0 type bridge mcast_snooping 0; ip -n "$P-sw" link set br0 up
  ns sw sysctl -qw net.bridge.bridge-nf-call-iptables=0
  ip -n "$P-sw" addr add 10.77.0.254/24 dev br0; i=0
  for h in "$@"; do i=$((i+1)); add "$h"
    ip -n "$P-$h" link add nic0 type veth peer name "p-$h" netns "$P-sw"
    ip -n "$P-sw" link set "p-$h" master br0 up
    ip -n "$P-$h" addr add "10.77.0.$i/24" dev nic0; ip -n "$P-$h" link set nic0 up
    ns "$h" ethtool -K nic0 gro on # as a real NIC has it
    ip -n "$P-$h" route add default via 10.77.0.254
    ns "$h" sysctl -qw net.ipv4.ip_forward=1
  done
}
# A node as flannel makes it: flannel.1, cni0, one pod; then what it knows of another node.
node() { h=$1; i=$2; port=${3:-8472}
  ip -n "$P-$h" link add flannel.1 address "02:f1:00:00:00:0$i" type vxlan id 1 dev nic0 local "10.77.0.$i" dstport "$port" nolearning ${VXOPT:-}
  ip -n "$P-$h" link set flannel.1 mtu 1450 up; ip -n "$P-$h" addr add "10.244.$i.0/32" dev flannel.1
  ip -n "$P-$h" link add cni0 mtu 1450 type bridge; ip -n "$P-$h" addr add "10.244.$i.1/24" dev cni0; ip -n "$P-$h" link set cni0 up
  add "pod-$h"; ip -n "$P-pod-$h" link add eth0 mtu 1450 type veth peer name "veth-pod" mtu 1450 netns "$P-$h"
  ip -n "$P-$h" link set veth-pod master cni0 up; ip -n "$P-pod-$h" addr add "10.244.$i.2/24" dev eth0
  ip -n "$P-pod-$h" link set eth0 up; ip -n "$P-pod-$h" route add default via "10.244.$i.1"
}
knows() { h=$1; i=$2
  ip -n "$P-$h" route add "10.244.$i.0/24" via "10.244.$i.0" dev flannel.1 onlink
  ip -n "$P-$h" neigh add "10.244.$i.0" lladdr "02:f1:00:00:00:0$i" dev flannel.1 nud permanent
  ns "$h" bridge fdb append "02:f1:00:00:00:0$i" dev flannel.1 dst "10.77.0.$i" self permanent
}
flannel() { underlay a b; node a 1; node b 2; knows a 2; knows b 1; }
# Two nodes with a flannel device over IPv6, and a pod on each.
know6() { ip -n "$P-$1" -6 route add fd24:$2::/64 via fd24:$2:: dev flannel-v6.1 onlink
  ip -n "$P-$1" -6 neigh add fd24:$2:: lladdr $3 dev flannel-v6.1 nud permanent
  ns $1 bridge fdb append $3 dev flannel-v6.1 dst fd77::$2 self permanent; }
flannel6() {
  underlay a b
  for q in a:1:2 b:2:1; do h=${q%%:*}; r=${q#*:}; i=${r%:*}
    ns $h sysctl -qw net.ipv6.conf.all.forwarding=1
    ip -n "$P-$h" addr add fd77::$i/64 dev nic0 nodad
    ip -n "$P-$h" link add flannel-v6.1 address 02:f6:00:00:00:0$i type vxlan id 1 dev nic0 local fd77::$i dstport 8472 nolearning ${VXOPT:-}
    ip -n "$P-$h" link set flannel-v6.1 mtu 1430 up; ip -n "$P-$h" addr add fd24:$i::/128 dev flannel-v6.1 nodad
    ip -n "$P-$h" link add cni0 mtu 1430 type bridge mcast_snooping 0; ip -n "$P-$h" addr add fd24:$i::1/64 dev cni0 nodad; ip -n "$P-$h" link set cni0 up
    add pod-$h; ip -n "$P-pod-$h" link add eth0 mtu 1430 type veth peer name veth-pod mtu 1430 netns "$P-$h"
    ip -n "$P-$h" link set veth-pod master cni0 up
    ip -n "$P-pod-$h" addr add fd24:$i::2/64 dev eth0 nodad; ip -n "$P-pod-$h" link set eth0 up; ip -n "$P-pod-$h" -6 route add default via fd24:$i::1
  done
  know6 a 2 02:f6:00:00:00:02; know6 b 1 02:f6:00:00:00:01
}
# Compiles $RUN/d.o: programs `tc` and `xdp` that drop packets to UDP port 8472.
dropper() {
cat >"$RUN/d.c" <<'BC'
struct __sk_buff { unsigned int len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority, ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end; };
struct xdp_md { unsigned int data, data_end, data_meta, a, b; };
#define S(x) __attribute__((section(x), used))
static inline int hit(unsigned char *d, unsigned char *e) { return d + 38 <= e && d[12] == 8 && d[13] == 0 && d[23] == 17 && ((d[36] << 8 | d[37]) == 8472); }
S("tc") int drop(struct __sk_buff *s) { return hit((void *)(long)s->data, (void *)(long)s->data_end) ? 2 : 0; }
S("xdp") int xdrop(struct xdp_md *s) { return hit((void *)(long)s->data, (void *)(long)s->data_end) ? 1 : 2; }
char _l[] S("license") = "GPL";
BC
clang -O2 -g -target bpf -c "$RUN/d.c" -o "$RUN/d.o"
}
# Two Calico nodes in VXLAN mode: pods on routed veth pairs, whose gateway 169.254.1.1 the host answers
# for by proxy ARP.
calico() {
  underlay a b
  for q in a:1 b:2; do h=${q%:*}; i=${q#*:}
    ip -n "$P-$h" link add vxlan.calico address 66:00:00:00:00:0$i type vxlan id 4096 dev nic0 local 10.77.0.$i dstport 4789 nolearning
    ip -n "$P-$h" link set vxlan.calico mtu 1450 up; ip -n "$P-$h" addr add 10.244.$i.0/32 dev vxlan.calico
    add pod-$h; ip -n "$P-pod-$h" link add eth0 mtu 1450 type veth peer name cali1234 mtu 1450 address ee:ee:ee:ee:ee:ee netns "$P-$h"
    ip -n "$P-pod-$h" addr add 10.244.$i.2/32 dev eth0; ip -n "$P-pod-$h" link set eth0 up
    ip -n "$P-pod-$h" route add 169.254.1.1 dev eth0 scope link; ip -n "$P-pod-$h" route add default via 169.254.1.1
    ip -n "$P-$h" link set cali1234 up; ns $h sysctl -qw net.ipv4.conf.cali1234.proxy_arp=1 net.ipv4.neigh.cali1234.proxy_delay=0
    ip -n "$P-$h" route add 10.244.$i.2 dev cali1234 scope link; ip -n "$P-$h" route add blackhole 10.244.$i.0/26
  done
  for q in a:2 b:1; do h=${q%:*}; i=${q#*:}
    ip -n "$P-$h" route add 10.244.$i.0/26 via 10.244.$i.0 dev vxlan.calico onlink
    ip -n "$P-$h" neigh add 10.244.$i.0 lladdr 66:00:00:00:00:0$i dev vxlan.calico nud permanent
    ns $h bridge fdb append 66:00:00:00:00:0$i dev vxlan.calico dst 10.77.0.$i self permanent
  done
}
# A Docker overlay network as dockerd makes it: a sandbox without processes with br0 and vxlan0, whose
# underlay is the host's namespace; containers on br0; fixed neighbour and forwarding entries.
sandbox() { h=$1
  add "1-$h"; ip -n "$P-$h" link add vxtmp type vxlan id 4097 dstport 4789 learning proxy l2miss l3miss
  ip -n "$P-$h" link set vxtmp netns "$P-1-$h" name vxlan0
  ip -n "$P-1-$h" link add br0 mtu 1450 type bridge; ip -n "$P-1-$h" addr add 10.0.1.1/24 dev br0
  ip -n "$P-1-$h" link set vxlan0 mtu 1450 master br0 up; ip -n "$P-1-$h" link set br0 up
  ns "1-$h" sysctl -qw net.bridge.bridge-nf-call-iptables=0
}
container() { h=$1; name=$2; ip4=$3; mac=$4
  add "$name"; ip -n "$P-$name" link add eth0 address "$mac" mtu 1450 type veth peer name "veth-$name" mtu 1450 netns "$P-1-$h"
  ip -n "$P-1-$h" link set "veth-$name" master br0 up; ip -n "$P-$name" addr add "$ip4/24" dev eth0; ip -n "$P-$name" link set eth0 up
}
peer() { h=$1; ip4=$2; mac=$3; vtep=$4
  ip -n "$P-1-$h" neigh replace "$ip4" lladdr "$mac" dev vxlan0 nud permanent
  ns "1-$h" bridge fdb replace "$mac" dev vxlan0 dst "$vtep" self permanent
}
# A virtual machine: its NIC is a TAP in its own namespace, joined by a small program to the host's TAP.
guest() { # HOST TAP GUEST OFFLOADS(hex) DELAY_MS(of packets to the guest)
  cat >"$RUN/vm.py" <<'PY'
import ctypes, fcntl, os, select, struct, sys, time
host, tap, vm, offloads, delay = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4], 16), float(sys.argv[5]) / 1000
def enter(path):
    fd = os.open(path, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000): raise OSError(ctypes.get_errno(), path)
    os.close(fd)
def open_tap(name, flags):
    fd = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, 0x400454ca, struct.pack('16sH22x', name.encode(), 0x0002 | 0x1000 | 0x4000))
    fcntl.ioctl(fd, 0x400454d0, flags)
    return fd
enter('/run/netns/' + host); a = open_tap(tap, offloads)
enter('/run/netns/' + vm);   b = open_tap('eth0', offloads)
print('ready', flush=True)
other = {a: b, b: a}
while True:
    for fd in select.select([a, b], [], [])[0]:
        for _ in range(64):
            try: packet = os.read(fd, 70000)
            except BlockingIOError: break
            if fd == a and delay: time.sleep(delay)
            try: os.write(other[fd], packet)
            except OSError: pass
            if fd == a and delay: break
PY
  bg "vm-$3" python3 "$RUN/vm.py" "$P-$1" "$2" "$P-$3" "$4" "$5"
  printed "vm-$3" ready
  ip -n "$P-$3" link set eth0 up; ip -n "$P-$1" link set "$2" up
}
# Incus's bridge of instances at host a, with its rules, and an instance.
incus() {
  underlay a b
  ip -n "$P-a" link add incusbr0 type bridge mcast_snooping 0; ip -n "$P-a" addr add 10.158.0.1/24 dev incusbr0; ip -n "$P-a" link set incusbr0 up
  add vm; ip -n "$P-vm" link add eth0 type veth peer name veth-vm netns "$P-a"; ip -n "$P-a" link set veth-vm master incusbr0 up; ip -n "$P-vm" link set eth0 up
  ns a nft -f - <<NFT
table inet incus {
 chain pstrt.incusbr0 {
 type nat hook postrouting priority 100; policy accept; ip saddr 10.158.0.0/24 ip daddr != 10.158.0.0/24 masquerade
}
 chain fwd.incusbr0 {
 type filter hook forward priority 0; policy accept; ip version 4 oifname "incusbr0" accept
 ip version 4 iifname "incusbr0" accept
}
 chain in.incusbr0 {
 type filter hook input priority 0; policy accept; iifname "incusbr0" udp dport { 53, 67 } accept
 iifname "incusbr0" tcp dport 53 accept
}
}
NFT
  ip -n "$P-vm" addr add 10.158.0.9/24 dev eth0; ip -n "$P-vm" route add default via 10.158.0.1
}
# A web server in pod-b, to which a pod connects by an address.
connects() { # ADDRESS [POD, else pod-a]
  bg srv ip netns exec "$P-pod-b" python3 -m http.server 80
  bg cl ip netns exec "$P-${2:-pod-a}" python3 -c '
import socket,sys,time
while 1:
    s=socket.socket(); s.settimeout(0.8)
    try: s.connect((sys.argv[1],80)); print("bytes from",flush=True)
    except OSError as e: print(e,flush=True)
    s.close(); time.sleep(0.2)' "$1"
}
# A hypervisor: its NIC is a port of br1, as are its guests' TAPs; a neighbour of the same segment: host b.
hypervisor() { # bridge options
  underlay a b
  ip -n "$P-a" link add br1 type bridge "$@"
  ip -n "$P-a" addr flush dev nic0; ip -n "$P-a" link set nic0 master br1
  ip -n "$P-a" addr add 10.77.0.1/24 dev br1; ip -n "$P-a" link set br1 up
}
tap() { ip -n "$P-a" tuntap add dev "$1" mode tap vnet_hdr; ip -n "$P-a" link set "$1" master br1; add "$2"; }
# Two hosts a and b, each with a bridge br1 of a VXLAN device vx100 and a guest's veth: VNI_A VNI_B.
overlay() { underlay a b
  for q in "a 1 2 $1" "b 2 1 $2"; do set -- $q; h=$1
    ip -n "$P-$h" link add vx100 type vxlan id "$4" dev nic0 local "10.77.0.$2" remote "10.77.0.$3" dstport 4789
    ip -n "$P-$h" link add br1 mtu 1450 type bridge mcast_snooping 0; ip -n "$P-$h" link set br1 up
    ip -n "$P-$h" link set vx100 mtu 1450 master br1 up
    ns "$h" sysctl -qw net.bridge.bridge-nf-call-iptables=0
    add "guest-$h"; ip -n "$P-guest-$h" link add eth0 mtu 1450 type veth peer name veth-guest mtu 1450 netns "$P-$h"
    ip -n "$P-$h" link set veth-guest master br1 up; ip -n "$P-guest-$h" addr add "10.100.0.$2/24" dev eth0
    ip -n "$P-guest-$h" link set eth0 up
  done
}
# firewalld's rules on a host: in the zone of its NIC, and for packets that are routed.
firewalld() { # HOST RULE_OF_THE_ZONE RULE_OF_FORWARD
  ns "$1" nft -f - <<NFT
add table inet firewalld
add chain inet firewalld filter_INPUT { type filter hook input priority 10; policy accept; }
add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; policy accept; }
add chain inet firewalld filter_IN_public
add chain inet firewalld filter_IN_public_allow
add chain inet firewalld filter_FWD_trusted
add rule inet firewalld filter_INPUT ct state { established, related } accept
add rule inet firewalld filter_INPUT ct status dnat accept
add rule inet firewalld filter_INPUT iifname "lo" accept
add rule inet firewalld filter_INPUT ct state invalid drop
add rule inet firewalld filter_INPUT jump filter_IN_public
add rule inet firewalld filter_INPUT reject with icmpx admin-prohibited
add rule inet firewalld filter_IN_public jump filter_IN_public_allow
add rule inet firewalld filter_IN_public meta l4proto { icmp, ipv6-icmp } accept
add rule inet firewalld filter_IN_public_allow tcp dport 22 accept
${2:+add rule inet firewalld filter_IN_public_allow $2}
add rule inet firewalld filter_FORWARD ct state { established, related } accept
add rule inet firewalld filter_FORWARD ct status dnat accept
add rule inet firewalld filter_FORWARD iifname "lo" accept
add rule inet firewalld filter_FORWARD ct state invalid drop
add rule inet firewalld filter_FORWARD jump filter_FWD_trusted
add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited
${3:+add rule inet firewalld filter_FWD_trusted $3}
NFT
}
# ufw's rules on a host, by iptables-nft: what comes in, and what is routed.
ufw() { # HOST RULE_OF_USER_INPUT RULE_OF_USER_FORWARD
  ns "$1" nft -f - <<NFT
add table ip filter
add chain ip filter INPUT { type filter hook input priority 0; policy drop; }
add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }
add chain ip filter ufw-before-input
add chain ip filter ufw-user-input
add chain ip filter ufw-before-forward
add chain ip filter ufw-user-forward
add chain ip filter ufw-skip-to-policy-input
add rule ip filter INPUT counter jump ufw-before-input
add rule ip filter FORWARD counter jump ufw-before-forward
add rule ip filter ufw-before-input iifname "lo" counter accept
add rule ip filter ufw-before-input ct state related,established counter accept
add rule ip filter ufw-before-input ct state invalid counter drop
add rule ip filter ufw-before-input icmp type { destination-unreachable, time-exceeded, parameter-problem, echo-request } counter accept
add rule ip filter ufw-before-input udp dport 137 counter jump ufw-skip-to-policy-input
add rule ip filter ufw-before-input counter jump ufw-user-input
add rule ip filter ufw-user-input tcp dport 22 counter accept
${2:+add rule ip filter ufw-user-input $2}
add rule ip filter ufw-skip-to-policy-input counter drop
add rule ip filter ufw-before-forward ct state related,established counter accept
add rule ip filter ufw-before-forward icmp type { destination-unreachable, time-exceeded, parameter-problem } counter accept
add rule ip filter ufw-before-forward counter jump ufw-user-forward
${3:+add rule ip filter ufw-user-forward $3}
NFT
}
down; [ "$DO" = down ] && exit 0
mkdir -p "$RUN"
