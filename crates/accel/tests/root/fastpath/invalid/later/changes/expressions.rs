//! Expressions of nftables.

use super::{Change, On, change, later, rule, rule4};

pub(in super::super) const CHANGES: &[Change] = &[
    forward!("limit", "limit rate 1/hour burst 5 packets accept; drop"),
    forward!("limit over", "limit rate over 1/hour burst 20 packets drop"),
    forward!("limit of bytes", "limit rate over 1 bytes/hour burst 3000 bytes drop"),
    forward!(
        "named limit",
        "limit l { rate over 1/hour burst 20 packets };",
        "limit name \"l\" drop"
    ),
    forward!("quota", "quota over 3000 bytes drop"),
    forward!("named quota", "quota q { over 3000 bytes };", "quota name \"q\" drop"),
    forward!(
        "meter",
        "set m { type inet_service; flags dynamic; };",
        "update @m { th dport limit rate over 1/hour burst 12 packets } drop"
    ),
    forward!("numgen", "numgen inc mod 4 0 drop"),
    forward!(
        "a set that packets fill",
        "set m { type inet_service; flags dynamic; };",
        "th dport @m drop; add @m { th dport }"
    ),
    forward!(
        "a set that answers fill",
        "set m { type inet_service; flags dynamic,timeout; timeout 1h; };",
        "th dport @m drop; add @m { th sport }"
    ),
    later(
        forward!(
            "an accepting element that expires",
            "set m { type inet_service; flags timeout; elements = { 80 timeout 1s } };",
            "th dport @m accept; th sport @m accept; drop"
        ),
        1500,
    ),
    later(
        forward!(
            "a dropping element that expires",
            "set m { type inet_service; flags timeout; elements = { 80 timeout 1s } };",
            "th dport @m drop; th sport @m drop"
        ),
        1500,
    ),
    later(
        forward!(
            "an accepting map element that expires",
            "map m { type inet_service : verdict; flags timeout; elements = { 80 timeout 1s : accept } };",
            "th dport vmap @m; th sport vmap @m; drop"
        ),
        1500,
    ),
    forward!("counter in a map", "map m { type inet_service : counter; };", "counter drop"),
    forward!("meta time before", "meta time < \"2040-01-01\" drop"),
    forward!("meta time after", "meta time > \"2040-01-01\" drop"),
    forward!("meta hour", "meta hour \"00:00\"-\"23:59\" drop"),
    forward!("meta day", "meta day != \"Sunday\" accept; drop"),
    forward!("meta cpu", "meta cpu 0-1 drop"),
    forward!("meta random", "meta random & 1 >= 0 drop"),
    forward!("meta length", "meta length > 80 drop"),
    forward!("meta length from 100", "meta length > 100 drop"),
    forward!("meta iifgroup", "meta iifgroup 0 drop"),
    forward!("meta oifgroup", "meta oifgroup 7 drop"),
    change(
        "a device gets the group of a rule",
        "nft 'table inet x { chain c { type filter hook forward priority 1; meta oifgroup 7 drop; meta iifgroup 7 drop; }; }'; ip link set vxlan0 group 7; ip link set br0 group 7",
        "nft delete table inet x; ip link set vxlan0 group 0; ip link set br0 group 0",
        On::All,
    ),
    change(
        "a device gets the name of a rule",
        "nft 'table inet x { chain c { type filter hook forward priority 1; meta oifname \"late*\" drop; meta iifname \"late*\" drop; }; }'; ip link set br0 down; ip link set br0 name late0; ip link set late0 up",
        "nft delete table inet x; ip link set late0 down; ip link set late0 name br0; ip link set br0 up",
        On::Bridged,
    ),
    forward!("meta iifkind", "meta iifkind \"bridge\" drop"),
    forward!("meta oifkind", "meta oifkind \"vxlan\" drop"),
    forward!("meta iiftype", "meta iiftype ether drop"),
    forward!("meta pkttype", "meta pkttype host drop"),
    forward!("meta pkttype other", "meta pkttype other drop"),
    forward!("meta priority", "meta priority 0:0 drop"),
    forward!("meta priority none", "meta priority none drop"),
    forward!("meta priority written", "meta priority set 1:2 counter"),
    forward!("meta skuid", "meta skuid 0 drop"),
    forward!("meta skuid other", "meta skuid != 0 drop"),
    forward!("meta cgroup", "meta cgroup 0 drop"),
    forward!("meta rtclassid", "meta rtclassid 0 drop"),
    forward!("ct helper set by none", "ct helper \"ftp\" accept; drop"),
    forward!("meta sdif", "meta sdif 0 drop"),
    forward!("meta ipsec", "meta ipsec missing drop"),
    forward!("ipsec in", "ipsec in reqid 1 drop"),
    forward!("meta nftrace set", "meta nftrace set 1"),
    forward!("meta iif of the packet", "iifname \"port0\" drop"),
    forward!("meta protocol", "meta protocol { ip, ip6 } drop"),
    forward!("meta nfproto", "meta nfproto ipv4 drop"),
    rule4(
        "ip ttl",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip ttl < 64 drop; }; }'",
    ),
    rule4(
        "ip dscp",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip dscp 0 drop; }; }'",
    ),
    rule4(
        "ip ecn",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip ecn not-ect drop; }; }'",
    ),
    rule4(
        "ip id",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip id > 0 drop; }; }'",
    ),
    rule4(
        "ip hdrlength",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip hdrlength 5 drop; }; }'",
    ),
    rule4(
        "ip frag-off df",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip frag-off & 0x4000 != 0 drop; }; }'",
    ),
    rule4(
        "ip checksum",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip checksum != 0 drop; }; }'",
    ),
    rule4(
        "ip length",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip length > 90 drop; }; }'",
    ),
    rule4(
        "ip version",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip version 4 drop; }; }'",
    ),
    rule4(
        "ip option",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip option rr missing drop; }; }'",
    ),
    change(
        "ip6 hoplimit",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip6 hoplimit < 64 drop; }; }'",
        "nft delete table inet x",
        On::Six,
    ),
    change(
        "ip6 flowlabel",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip6 flowlabel > 3 drop; }; }'",
        "nft delete table inet x",
        On::Six,
    ),
    change(
        "ip6 dscp",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip6 dscp 0 drop; }; }'",
        "nft delete table inet x",
        On::Six,
    ),
    change(
        "ip6 nexthdr",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ip6 nexthdr tcp drop; }; }'",
        "nft delete table inet x",
        On::Six,
    ),
    change(
        "exthdr frag missing",
        "nft 'table inet x { chain c { type filter hook forward priority 1; exthdr frag missing drop; }; }'",
        "nft delete table inet x",
        On::Six,
    ),
    change(
        "rt type 0",
        "nft 'table inet x { chain c { type filter hook forward priority 1; exthdr rt exists drop; }; }'",
        "nft delete table inet x",
        On::Six,
    ),
    forward!("tcp flags psh", "tcp flags & psh == psh drop"),
    forward!("tcp flags ack", "tcp flags & ack == ack drop"),
    forward!("tcp flags & all == ack|psh", "tcp flags & (fin|syn|rst|psh|ack|urg) == ack|psh drop"),
    forward!("tcp window", "tcp window > 100 drop"),
    forward!("tcp sequence", "tcp sequence > 0 drop"),
    forward!("tcp doff", "tcp doff 5 drop"),
    forward!("tcp urgptr", "tcp urgptr 0 drop"),
    forward!("tcp checksum", "tcp checksum != 0 drop"),
    forward!("tcp option missing", "tcp option maxseg missing drop"),
    forward!("tcp option set", "tcp option maxseg size set rt mtu"),
    forward!("tcp option reset", "reset tcp option timestamp"),
    forward!("udp length", "udp length > 60 drop"),
    forward!("udp checksum", "udp checksum != 0 drop"),
    forward!("udp checksum set", "udp checksum set 0"),
    forward!("raw bytes of the transport header", "@th,96,8 0x50 drop"),
    forward!("raw bytes of the network header", "@nh,0,4 4 drop"),
    forward!("raw bytes of the payload", "@ih,0,16 0x0001 drop"),
    forward!("raw bytes of the link layer", "@ll,96,16 0x0800 drop"),
    forward!("ether saddr", "ether saddr 02:77:00:00:00:11 drop"),
    forward!("ether type", "ether type { ip, ip6 } drop"),
    forward!("rt nexthop", "rt ip nexthop 10.1.12.0 drop; rt ip6 nexthop fd00:12:: drop"),
    forward!("rt classid", "rt classid 0 drop"),
    forward!("rt mtu", "rt mtu > 100 drop"),
    forward!("rt ipsec", "rt ipsec missing drop"),
    rule(
        "fib saddr oif",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; fib saddr oif \"br0\" drop; }; }'",
    ),
    rule(
        "fib saddr . iif missing",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; iifname { \"br0\", \"vxlan0\" } fib saddr . iif oif missing drop; }; }'",
    ),
    change(
        "fib type after an address is added",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; fib saddr type local drop; fib daddr type local drop; }; }'; ip addr add SERVER/BITS dev lo",
        "nft delete table inet x; ip addr del SERVER/BITS dev lo",
        On::Routed,
    ),
    change(
        "fib device after a route is changed",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; fib daddr oif \"lo\" drop; fib saddr . iif oif missing iifname \"br0\" drop; }; }'; ip route add unreachable CLIENT/BITS table 77; ip rule add iif br0 to CLIENT/BITS lookup 77",
        "nft delete table inet x; ip route flush table 77; ip rule del iif br0 to CLIENT/BITS lookup 77",
        On::RoutedFour,
    ),
    rule(
        "socket transparent",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; socket transparent 1 drop; }; }'",
    ),
    rule(
        "socket mark",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; socket mark 0 drop; }; }'",
    ),
    rule(
        "socket wildcard",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; socket wildcard 0 drop; }; }'",
    ),
    rule(
        "tproxy",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; meta l4proto { tcp, udp } tproxy FAMILY to :9999 drop; }; }'",
    ),
    forward!("reject", "tcp dport 80 reject with tcp reset"),
    forward!("log", "log"),
    change(
        "dup",
        "nft 'table ip x { chain c { type filter hook forward priority 1; dup to 10.1.0.9; }; }'",
        "nft delete table ip x",
        On::Four,
    ),
    forward!("jhash", "jhash th dport . th sport mod 2 vmap { 0 : drop, 1 : drop }"),
    forward!("symhash", "symhash mod 2 vmap { 0 : drop, 1 : drop }"),
    forward!("osf", "osf name \"unknown\" drop"),
    forward!("vmap", "th dport vmap { 80 : drop }; th sport vmap { 80 : drop }"),
    rule(
        "vmap whose element comes later",
        "nft 'table inet x { map m { type inet_service : verdict; }; chain c { type filter hook forward priority 1; th dport vmap @m; th sport vmap @m; }; }'; sleep 0.2; nft 'add element inet x m { 80 : drop }'",
    ),
    rule(
        "concatenation of ranges",
        "nft 'table inet x { set m { type inet_proto . inet_service; flags interval; elements = { 6 . 70-90 }; }; chain c { type filter hook forward priority 1; meta l4proto . th dport @m drop; }; }'",
    ),
    rule(
        "a chain that is filled later",
        "nft 'table inet x { chain d { }; chain c { type filter hook forward priority 1; jump d; }; }'; sleep 0.2; nft 'add rule inet x d th dport 80 drop'",
    ),
    rule(
        "a rule replaced in place",
        "nft 'table inet x { chain c { type filter hook forward priority 1; th dport 81 drop; }; }'; sleep 0.2; nft replace rule inet x c handle $(nft -a list chain inet x c | sed -n 's/.*dport 81.*handle //p') th dport 80 drop",
    ),
    rule(
        "a policy that is set later",
        "nft 'table inet x { chain c { type filter hook forward priority 1; }; }'; sleep 0.2; nft 'chain inet x c { policy drop; }'",
    ),
    rule(
        "a dormant table that wakes up",
        "nft 'table inet x { flags dormant; chain c { type filter hook forward priority 1; drop; }; }'; sleep 0.2; nft 'table inet x { flags ; }' || nft 'add table inet x'; nft list table inet x >/dev/null",
    ),
    rule(
        "mark set, then policy routing by it",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; meta mark set 5; }; chain d { type filter hook postrouting priority -150; meta mark set 0; }; }'",
    ),
    change(
        "a rule for a mark that rules set and unset",
        "nft 'table inet x { chain c { type filter hook prerouting priority -150; meta mark set 5; }; chain d { type filter hook postrouting priority -150; meta mark set 0; }; }'; ip -4 rule add fwmark 5 prohibit; ip -6 rule add fwmark 5 prohibit",
        "ip -4 rule del fwmark 5 prohibit; ip -6 rule del fwmark 5 prohibit; nft delete table inet x",
        On::Routed,
    ),
    rule(
        "nat chain with a drop",
        "nft 'table inet x { chain c { type nat hook prerouting priority -100; drop; }; }'",
    ),
    rule(
        "nat to another server",
        "nft 'table inet x { chain c { type nat hook prerouting priority -100; tcp dport 80 dnat ip to 10.1.0.99; }; }'",
    ),
    change(
        "masquerade",
        "nft 'table inet x { chain c { type nat hook postrouting priority 100; oifname vxlan0 masquerade; }; }'",
        "nft delete table inet x",
        On::Bridged,
    ),
    change(
        "netdev chain at the tenant's port",
        "nft 'table netdev x { chain c { type filter hook ingress device port0 priority 0; drop; }; }'",
        "nft delete table netdev x",
        On::All,
    ),
    change(
        "netdev egress chain at the VXLAN device",
        "nft 'table netdev x { chain c { type filter hook egress device vxlan0 priority 0; drop; }; }'",
        "nft delete table netdev x",
        On::All,
    ),
    change(
        "netdev chain at the NIC",
        "nft 'table netdev x { chain c { type filter hook ingress device nic0 priority 0; udp dport 4789 drop; }; }'",
        "nft delete table netdev x",
        On::All,
    ),
    change(
        "inet ingress chain",
        "nft 'table inet x { chain c { type filter hook ingress device port0 priority 0; drop; }; }'",
        "nft delete table inet x",
        On::All,
    ),
    change(
        "flowtable of others",
        "nft 'table inet x { flowtable f { hook ingress priority 0; devices = { br0, vxlan0 }; }; chain c { type filter hook forward priority 1; flow add @f; }; }'",
        "nft delete table inet x",
        On::Routed,
    ),
    change(
        "bridge family chain",
        "nft 'table bridge x { chain c { type filter hook forward priority 0; drop; }; }'",
        "nft delete table bridge x",
        On::Bridged,
    ),
    change(
        "bridge family, prerouting",
        "nft 'table bridge x { chain c { type filter hook prerouting priority 0; drop; }; }'",
        "nft delete table bridge x",
        On::All,
    ),
];
