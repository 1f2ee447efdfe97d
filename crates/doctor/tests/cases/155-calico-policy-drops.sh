#!/bin/sh
# 155: calico: the policy of a pod admits another pod only.
# Source: https://github.com/projectcalico/calico/issues/2169
# Cause: set cali40s-x of b has 10.244.1.9 instead of 10.244.1.2: all pings are dropped by cali-tw
# Expected: rule of cali-tw-cali1234 drops packets from 10.244.1.2
# Check: OV111
# One node: b pod-b
. "$(dirname "$0")/bed.sh"

calico
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
