use proptest::prelude::*;

use super::*;

// Linux 6.18.
const SNMP: &str = include_str!("../../../tests/golden/snmp-6.18");
const NETSTAT: &str = include_str!("../../../tests/golden/netstat-6.18");
const SNMP6: &str = include_str!("../../../tests/golden/snmp6-6.18");

#[test]
fn the_kernels_files_are_parsed() {
    let snmp = Snmp::parse(SNMP).unwrap();
    assert_eq!(snmp.ip.in_receives, 6112);
    assert_eq!(snmp.ip.out_requests, 3900);
    assert_eq!(snmp.tcp.active_opens, 75);
    assert_eq!(snmp.tcp.in_segs, 5958);
    assert_eq!(snmp.tcp.out_rsts, 63);
    assert_eq!((snmp.udp.in_datagrams, snmp.udp.out_datagrams), (153, 154));
    let netstat = Netstat::parse(NETSTAT).unwrap();
    assert_eq!(netstat.ip_ext.in_octets, 201_401_183);
    assert_eq!(netstat.ip_ext.out_octets, 380_607);
    let snmp6 = Snmp6::parse(SNMP6).unwrap();
    assert_eq!((snmp6.ip.in_octets, snmp6.ip.out_octets), (128, 880));
    assert_eq!(snmp6.udp, Udp::default());
}

#[test]
fn udp6_is_not_taken_for_udplite6_or_udp() {
    let text =
        SNMP6.replace("Udp6RcvbufErrors                	0", "Udp6RcvbufErrors                	9");
    assert_eq!(Snmp6::parse(&text).unwrap().udp.rcvbuf_errors, 9);
    let text =
        SNMP6.replace("UdpLite6RcvbufErrors            	0", "UdpLite6RcvbufErrors            	9");
    assert_eq!(Snmp6::parse(&text).unwrap().udp.rcvbuf_errors, 0);
}

#[test]
fn counters_are_found_by_name_not_by_column() {
    let text = "Ip: InReceives InHdrErrors InAddrErrors ForwDatagrams InDiscards InDelivers \
        OutRequests OutDiscards OutNoRoutes ReasmReqds ReasmOKs ReasmFails FragOKs FragFails \
        FragCreates Future\nIp: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
        Tcp: MaxConn OutRsts InErrs RetransSegs OutSegs InSegs EstabResets AttemptFails \
        PassiveOpens ActiveOpens InCsumErrors\nTcp: -1 9 8 7 6 5 4 3 2 1 0\n\
        Udp: RcvbufErrors InDatagrams NoPorts InErrors OutDatagrams SndbufErrors InCsumErrors\n\
        Udp: 7 1 2 3 4 5 6\n";
    let snmp = Snmp::parse(text).unwrap();
    assert_eq!(snmp.ip.in_discards, 5);
    assert_eq!(snmp.tcp.retrans_segs, 7);
    assert_eq!(snmp.udp.rcvbuf_errors, 7);
    // Linux before 5.11 has no MemErrors.
    assert_eq!(snmp.udp.mem_errors, 0);
    let named: Vec<_> = snmp.udp.named().filter(|(_, value)| *value > 5).collect();
    assert_eq!(named, [("RcvbufErrors", 7), ("InCsumErrors", 6)]);
}

#[test]
fn errors_name_file_line_and_field() {
    let missing = SNMP.replace("RetransSegs", "Retrans");
    let error = Snmp::parse(&missing).unwrap_err();
    assert_eq!((error.file.as_str(), error.field.as_str()), (PROC_SNMP, "Tcp RetransSegs"));

    let bad = SNMP.replace("Udp: 153 ", "Udp: x ");
    let error = Snmp::parse(&bad).unwrap_err();
    assert_eq!(
        (error.line, error.field.as_str(), error.got.as_str()),
        (10, "Udp InDatagrams", "x")
    );

    let short = SNMP.replace("Udp: 153 ", "Udp: ");
    let error = Snmp::parse(&short).unwrap_err();
    assert_eq!((error.line, error.got.as_str()), (10, "9 names, 8 values"));

    let unpaired = SNMP.replacen("\nIp: ", "\nOther: ", 1);
    assert_eq!(Snmp::parse(&unpaired).unwrap_err().line, 2);
    assert_eq!(Snmp::parse("no colon\n").unwrap_err().field, "protocol");
    assert_eq!(Netstat::parse("").unwrap_err().got, "none");

    let error = Snmp6::parse("Ip6InReceives 1 2\n").unwrap_err();
    assert_eq!((error.line, error.expected), (1, "a name and a value"));
    let error = Snmp6::parse(&SNMP6.replace("\t128", "\t12x")).unwrap_err();
    assert_eq!((error.line, error.field.as_str()), (23, "Ip6 InOctets"));
}

#[test]
fn differences_and_sums_are_by_counter() {
    let before = Udp { in_datagrams: 5, in_errors: 9, ..Udp::default() };
    let after = Udp { in_datagrams: 8, in_errors: 9, ..Udp::default() };
    assert_eq!(after.since(&before), Udp { in_datagrams: 3, ..Udp::default() });
    assert_eq!(after.plus(&before).in_errors, 18);
}

#[test]
fn this_machines_files_are_read_again() {
    let files = SnmpFiles::open().unwrap();
    let before = files.read().unwrap();
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..7 {
        sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
    }
    let delta = files.read().unwrap().since(&before);
    assert!(delta.udp.out_datagrams >= 7, "{:?}", delta.udp);
}

#[test]
fn files_stay_bound_to_the_namespace_they_were_opened_in() {
    test_support::require!(test_support::need::networks());
    let namespace = NetNs::new().unwrap();
    let files = SnmpFiles::open_in(&namespace).unwrap();
    assert_eq!(files.read().unwrap(), Counters::default());
    namespace
        .run(|| {
            // No route in an empty namespace: counted there, seen from here.
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(b"x", "192.0.2.1:9").unwrap_err();
        })
        .unwrap();
    assert_eq!(files.read().unwrap().ip.out_no_routes, 1);
}

proptest! {
    #[test]
    fn garbage_never_panics(
        text in "((Ip|Tcp|Udp|IpExt|TcpExt)?:?( [A-Za-z0-9-]{0,6}){0,5}\n){0,6}.{0,40}",
        cut in 0_usize..6000,
    ) {
        let _ = Snmp::parse(&text);
        let _ = Netstat::parse(&text);
        let _ = Snmp6::parse(&text);
        for golden in [SNMP, NETSTAT, SNMP6] {
            let cut = &golden[..cut.min(golden.len())];
            let _ = (Snmp::parse(cut), Netstat::parse(cut), Snmp6::parse(cut));
        }
    }
}
