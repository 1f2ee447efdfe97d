//! Packets on the wire, decoded by another program.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use test_support::{need, require};
use testbed::Host;

use super::*;

/// tcpdump at a host's NIC of all UDP; ended when dropped.
pub struct Capture(Child);

impl Capture {
    pub fn start(host: &Host, file: &Path) -> Capture {
        let mut command = Command::new("tcpdump");
        command.args(["-n", "-U", "-B", "65536", "-s", "0", "-i", NIC, "udp", "-w"]).arg(file);
        let spawned = host.netns().run(|| command.stderr(Stdio::piped()).spawn()).unwrap();
        let mut child = spawned.unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        while !said.next().expect("tcpdump ended").unwrap().contains("listening on") {}
        Capture(child)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
        let _ = self.0.wait();
    }
}

/// tshark's output for a capture.
pub fn tshark(file: &Path, more: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file);
    for checked in ["ip", "udp", "tcp"] {
        command.args(["-o", &format!("{checked}.check_checksum:TRUE")]);
    }
    // Otherwise tshark sometimes decodes random bytes as a malformed protocol.
    command.args(["-d", "tcp.port==1-65535,data"]);
    // A slow receiver is not a fault of the packets.
    command.args(["-o", "tcp.analyze_sequence_numbers:FALSE"]).args(more);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_dissector_finds_nothing_to_complain_about() {
    require!(need::tun(), need::tools(&["ethtool", "tcpdump", "tshark"]));
    for plan in [PLAN, CUT, Plan { v6: true, ..PLAN }] {
        eprintln!("{plan:?}");
        let [a, b] = hosts(&plan);
        // As with a NIC: checksums are complete and packets are segmented on the wire, and not
        // merged before the capture.
        for host in [&a, &b] {
            let mut command = Command::new("ethtool");
            command.args(["-K", NIC, "tx", "off", "tso", "off", "gso", "off", "gro", "off"]);
            host.run(&mut command).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("wire.pcap");
        let capture = Capture::start(&b, &file);
        let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
        kernel(&plan, &b, 1, 0);
        everything_crosses(&vtep.tenant, &b);
        vtep.end();
        drop(capture);

        // Warnings and errors, except for a TCP report of a duplicate segment, which a busy
        // machine's timers cause, and one in 65,536 checksums that the kernel finished:
        // `skb_checksum_help` writes 0xffff where TCP writes 0.
        let kernels = match plan.hand_over {
            HandOver::UdpSegment => {
                let [v4, v6] = [INNER_V4[1], INNER_V6[1]];
                format!("tcp.checksum == 0xffff && (ip.src == {v4} || ipv6.src == {v6})")
            }
            _ => "tcp.checksum == 0xffff".to_owned(),
        };
        let complaints =
            format!("_ws.expert.severity >= 6291456 && !tcp.options.sack.dsack && !({kernels})");
        let complaints = tshark(&file, &["-Y", &complaints]);
        assert!(complaints.is_empty(), "{:?}", complaints.lines().take(9).collect::<Vec<_>>());
        // One in 65,536, of some thousands.
        let excused = tshark(&file, &["-Y", &kernels]);
        assert!(excused.lines().count() < 10, "{:?}", excused.lines().next());
        let fields = ["ip.checksum.status", "udp.checksum.status", "tcp.checksum.status"];
        let ours = format!("vxlan && !({kernels})");
        let mut arguments = vec!["-Y", &ours, "-T", "fields", "-E", "separator=;"];
        fields.iter().for_each(|field| arguments.extend(["-e", field]));
        let statuses = tshark(&file, &arguments);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for status in statuses.split([';', ',', '\n']).filter(|status| !status.is_empty()) {
            *counts.entry(status).or_default() += 1;
        }
        // 1 is good, 0 bad, 2 unchecked.
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), ["1"], "{counts:?}");
        assert!(counts["1"] > 10_000, "{counts:?}");
    }
}
