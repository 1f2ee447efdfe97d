#!/bin/sh
# 155: calico: the policy of a pod admits another pod only.
# Source: https://github.com/projectcalico/calico/issues/2169
# Cause: set cali40s-x of b has 10.244.1.9 instead of 10.244.1.2: all pings are dropped by cali-tw
# Expected: rule of cali-tw-cali1234 drops packets from 10.244.1.2
# Check: OV111
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

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

w=10.244.1.9; [ "$DO" = healthy ] && w=10.244.1.2
ns b nft -f - <<NFT
table ip filter {
 set cali40s-x {
 type ipv4_addr; flags interval; elements = { $w } 
}
 chain cali-pi-x {
 ip saddr @cali40s-x counter meta mark set mark or 0x10000
 meta mark & 0x10000 == 0x10000 counter return
}
 chain cali-tw-cali1234 {
 ct state established,related counter accept
 ct state invalid counter drop
 counter meta mark set mark and 0xfffeffff
 counter jump cali-pi-x
 meta mark & 0x10000 == 0x10000 counter return
 counter drop comment "Drop if no profiles matched"
}
 chain cali-fw-cali1234 {
 ct state established,related counter accept
 ct state invalid counter drop
 counter meta mark set mark or 0x10000
 meta mark & 0x10000 == 0x10000 counter return
 counter drop
}
 chain cali-to-wl-dispatch {
 oifname "cali1234" counter goto cali-tw-cali1234
 counter drop comment "Unknown interface"
}
 chain cali-from-wl-dispatch {
 iifname "cali1234" counter goto cali-fw-cali1234
 counter drop comment "Unknown interface"
}
 chain cali-FORWARD {
 counter meta mark set mark and 0xfff1ffff
 iifname "cali*" counter jump cali-from-wl-dispatch
 oifname "cali*" counter jump cali-to-wl-dispatch
 meta mark & 0x10000 == 0x10000 counter accept
}
 chain FORWARD {
 type filter hook forward priority 0; policy accept; counter jump cali-FORWARD
}
}
NFT
bg ping ip netns exec "$P-pod-a" ping -i 0.5 10.244.2.2
echo "$0: $DO is there"
