//! Rules on conntrack's entries, and changes of the entries.

use super::{Change, On, at_server, change, later, rule, silent, steady};

/// A rule on conntrack's counters, which switches them on.
const fn counters(change: Change) -> Change {
    Change {
        undo: "nft delete table inet x; sysctl -qw net.netfilter.nf_conntrack_acct=0",
        ..change
    }
}

pub(in super::super) const CHANGES: &[Change] = &[
    forward!("ct state established drop", "ct state established drop"),
    at_server(forward!(
        "ct state established drop at the server's host",
        "ct state established drop"
    )),
    forward!("ct state new drop", "ct state new drop"),
    forward!("ct mark in rules, set by a process", "ct mark 5 drop"),
    change(
        "a process sets the mark of a rule",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ct mark 5 drop; }; }'; conntrack -U --mark 5 2>/dev/null >&2 || true",
        "nft delete table inet x; conntrack -U --mark 0 2>/dev/null >&2 || true",
        On::All,
    ),
    forward!("ct mark set by the rule, then matched", "ct mark set 7; ct mark 7 counter drop"),
    forward!(
        "ct mark set by a reply, dropped in the original direction",
        "ct direction reply ct mark set 7; ct direction original ct mark 7 drop"
    ),
    change(
        "ct label set by a process",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ct label 1 drop; }; }'; conntrack -U --label-add 1 2>/dev/null >&2 || true",
        "nft delete table inet x",
        On::All,
    ),
    forward!("ct label set by a rule", "ct label 3 drop; ct direction reply ct label set 3"),
    rule(
        "another zone from now on",
        "nft 'table inet x { chain c { type filter hook prerouting priority raw; ct zone set 4; }; chain d { type filter hook forward priority 1; ct state new drop; }; }'",
    ),
    rule(
        "another zone for replies",
        "nft 'table inet x { chain c { type filter hook prerouting priority raw; iifname vxlan0 ct zone set 4; }; chain d { type filter hook forward priority 1; ct state new drop; }; }'",
    ),
    forward!("ct zone", "ct zone 0 drop"),
    rule(
        "notrack",
        "nft 'table inet x { chain c { type filter hook prerouting priority raw; notrack; }; chain d { type filter hook forward priority 1; ct state untracked drop; }; }'",
    ),
    rule(
        "notrack of replies",
        "nft 'table inet x { chain c { type filter hook prerouting priority raw; iifname vxlan0 notrack; }; chain d { type filter hook forward priority 1; ct state untracked drop; }; }'",
    ),
    counters(forward!("ct avgpkt", "ct avgpkt > 1000000 drop")),
    counters(forward!("ct packets", "ct packets > 20 drop")),
    counters(forward!("ct packets, of replies", "ct reply packets > 20 drop")),
    counters(forward!("ct bytes", "ct bytes > 3000 drop")),
    counters(forward!("ct packets below", "ct packets < 20 drop")),
    counters(change(
        "counters, then a rule",
        "sysctl -qw net.netfilter.nf_conntrack_acct=1; nft 'table inet x { chain c { type filter hook forward priority 1; ct state established ct packets > 20 drop; }; }'",
        "",
        On::All,
    )),
    later(forward!("ct expiration", "ct expiration > 20s drop"), 0),
    forward!("ct expiration below", "ct expiration < 170s drop"),
    forward!("ct id", "ct id 5 drop"),
    forward!("ct status assured", "ct status assured drop"),
    forward!("ct status seen-reply", "ct status seen-reply drop"),
    forward!("ct status not assured", "ct status & assured == 0 drop"),
    forward!(
        "ct count over",
        "set m { type inet_service; flags dynamic; };",
        "add @m { tcp dport ct count over 1 } drop"
    ),
    forward!("ct count over 0", "ct count over 0 drop"),
    forward!(
        "ct original and reply tuples",
        "meta l4proto tcp ct original proto-dst 80 ct reply proto-src 80 drop"
    ),
    forward!("ct helper", "ct helper != \"ftp\" drop"),
    rule(
        "helper assigned by a rule",
        "nft 'table inet x { ct helper f { type \"ftp\" protocol tcp; }; chain c { type filter hook forward priority -1; tcp dport 80 ct helper set \"f\"; }; chain d { type filter hook forward priority 1; ct helper \"ftp\" drop; }; }'",
    ),
    rule(
        "timeout policy assigned by a rule",
        "nft 'table inet x { ct timeout s { protocol tcp; l3proto FAMILY; policy = { established : 3 }; }; chain c { type filter hook prerouting priority -180; ct timeout set \"s\"; }; chain d { type filter hook forward priority 1; ct expiration < 10s drop; }; }'",
    ),
    rule(
        "expectation assigned by a rule",
        "nft 'table inet x { ct expectation e { protocol tcp; dport 99; timeout 1h; size 12; l3proto FAMILY; }; chain c { type filter hook forward priority 1; ct expectation set \"e\"; }; }'",
    ),
    change(
        "conntrack -D, and no new connection",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ct state new drop; }; }'; conntrack -D >/dev/null 2>&1 || true",
        "nft delete table inet x",
        On::All,
    ),
    change(
        "conntrack -F, and no new connection",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ct state new drop; }; }'; conntrack -F 2>/dev/null",
        "nft delete table inet x",
        On::All,
    ),
    change(
        "conntrack -F, and none is picked up",
        "sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0; conntrack -F 2>/dev/null",
        "sysctl -qw net.netfilter.nf_conntrack_tcp_loose=1",
        On::All,
    ),
    change("conntrack -F", "conntrack -F 2>/dev/null", "true", On::All),
    change(
        "tcp_loose off",
        "sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0",
        "sysctl -qw net.netfilter.nf_conntrack_tcp_loose=1",
        On::All,
    ),
    change(
        "tcp_be_liberal on",
        "sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=1",
        "sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0",
        On::All,
    ),
    steady(change(
        "timeouts of a second",
        "sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=1 net.netfilter.nf_conntrack_udp_timeout_stream=1 net.netfilter.nf_conntrack_udp_timeout=1; nft 'table inet x { chain c { type filter hook forward priority 1; ct state new drop; }; }'",
        "sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=432000 net.netfilter.nf_conntrack_udp_timeout_stream=120 net.netfilter.nf_conntrack_udp_timeout=30; nft delete table inet x",
        On::All,
    )),
    change(
        "checksums are not verified",
        "sysctl -qw net.netfilter.nf_conntrack_tcp_no_window_check=0 2>/dev/null || true; sysctl -qw net.netfilter.nf_conntrack_checksum=0",
        "sysctl -qw net.netfilter.nf_conntrack_checksum=1",
        On::All,
    ),
    steady(change(
        "a process shortens an entry's timeout",
        "nft 'table inet x { chain c { type filter hook forward priority 1; ct state new drop; }; }'; conntrack -U --timeout 1 >/dev/null 2>&1 || true",
        "nft delete table inet x",
        On::All,
    )),
    steady(change(
        "timeouts of a second, of datagrams",
        "sysctl -qw net.netfilter.nf_conntrack_udp_timeout_stream=1 net.netfilter.nf_conntrack_udp_timeout=1; nft 'table inet x { chain c { type filter hook forward priority 1; meta l4proto udp ct state new drop; }; }'",
        "sysctl -qw net.netfilter.nf_conntrack_udp_timeout_stream=120 net.netfilter.nf_conntrack_udp_timeout=30; nft delete table inet x",
        On::All,
    )),
    silent(
        later(
            change(
                "a shorter timeout, then silence",
                "sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0 net.netfilter.nf_conntrack_tcp_timeout_established=2",
                "sysctl -qw net.netfilter.nf_conntrack_tcp_loose=1 net.netfilter.nf_conntrack_tcp_timeout_established=432000",
                On::All,
            ),
            2000,
        ),
        3000,
    ),
    rule(
        "synproxy",
        "nft 'table inet x { chain c { type filter hook forward priority 1; tcp dport 80 ct state invalid,untracked synproxy mss 1400 wscale 7; tcp dport 80 ct state invalid drop; }; chain r { type filter hook prerouting priority raw; tcp dport 80 tcp flags syn notrack; }; }'",
    ),
];
