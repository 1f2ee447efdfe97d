//! BIRD, configured as calico's node configures it.
//!
//! Source: `confd/etc/calico/confd/templates` of projectcalico/calico, translated to BIRD 2.
//! calico's own BIRD is a fork of version 1.6.

use std::fmt::Write;
use std::process::Command;

use testbed::{Host, Process, Processes};

use super::{AS, Announce, BLOCK_PREFIX, CLUSTER_ID, POOL, Speaker, command, write};
use crate::Result;
use crate::unsupported::find_program;

const CONFIGURATION: &str = "/run/bird.conf";
/// Control socket for `birdc`.
const SOCKET: &str = "/run/bird.ctl";
/// Name of a peer's protocol, followed by the peer's number.
const PEER: &str = "peer";

pub(super) fn start(tree: &Processes, host: &Host, speaker: &Speaker) -> Result<Vec<Process>> {
    write(tree, host, CONFIGURATION, &configuration(speaker))?;
    // If it was removed since the probe, starting it fails with its name.
    let mut bird = command(find_program("bird").unwrap_or_else(|| "bird".into()));
    // In the foreground. `-R`, as calico does: recover the routes after a crash.
    bird.args(["-f", "-R", "-c", CONFIGURATION, "-s", SOCKET, "-P", "/run/bird.pid"]);
    Ok(vec![tree.start_as(&format!("bird in {}", host.name()), host, &mut bird)?])
}

/// Returns the command that enables or disables the session with the first peer.
pub(super) fn session(up: bool) -> Command {
    let mut birdc = command(find_program("birdc").unwrap_or_else(|| "birdc".into()));
    birdc.args(["-s", SOCKET, if up { "enable" } else { "disable" }, &format!("{PEER}0")]);
    birdc
}

fn configuration(speaker: &Speaker) -> String {
    let mut text = format!(
        "log stderr all;
router id {address};
protocol device {{ scan time 2; }}
protocol direct {{ ipv4; interface -\"veth*\", \"*\"; }}
protocol kernel {{
  learn;
  persist;
  scan time 2;
  merge paths on;
  graceful restart;
  ipv4 {{ import all; export all; }};
}}
filter to_peers {{
",
        address = speaker.address
    );
    if let (Some(block), Announce::Block) = (speaker.block, speaker.announce) {
        // Announce the block and nothing inside it.
        let block = format!("{block}/{BLOCK_PREFIX}");
        text += &format!(
            "  if net = {block} then accept;
  if net ~ {block} then reject;
  if net ~ {POOL} then accept;
  reject;
}}
protocol static blocks {{ ipv4; route {block} blackhole; }}
"
        );
    } else {
        text += &format!("  if net ~ {POOL} then accept;\n  reject;\n}}\n");
    }
    if let Some(device) = speaker.tunnel {
        // calico's BIRD has an option for this (`krt_tunnel`). Here BIRD resolves announced next
        // hops in a table of their own, where each peer is reached by the tunnel. That table does
        // not hold the underlay's routes, which the tunnel and the sessions need.
        text += "ipv4 table tunnels;\nprotocol static ends {\n  ipv4 { table tunnels; };\n";
        for peer in &speaker.peers {
            // Writing to a string never fails.
            let _ = writeln!(text, "  route {peer}/32 via {peer}%{device} onlink;");
        }
        text += "}\n";
    }
    let resolved = if speaker.tunnel.is_some() { "igp table tunnels; " } else { "" };
    for (number, peer) in speaker.peers.iter().enumerate() {
        // Only one side connects: the one with the higher address.
        let passive = if *peer > speaker.address { "  passive on;\n" } else { "" };
        let client = if speaker.reflects() {
            format!("  rr client;\n  rr cluster id {CLUSTER_ID};\n")
        } else {
            String::new()
        };
        let _ = write!(
            text,
            "protocol bgp {PEER}{number} {{
  local {address} as {AS};
  neighbor {peer} as {AS};
{passive}{client}  multihop;
  graceful restart;
  connect delay time 2;
  connect retry time 5;
  error wait time 5,30;
  ipv4 {{ {resolved}import all; export filter to_peers; gateway recursive; add paths on; }};
}}
",
            address = speaker.address
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use test_support::{need, require};

    use super::super::tests::speakers;
    use super::*;

    #[test]
    fn bird_reads_every_configuration() {
        let texts: Vec<_> = speakers().iter().map(configuration).collect();
        assert!(texts[0].contains("passive on") && texts[0].contains("10.1.1.0/26 blackhole"));
        assert!(!texts[1].contains("/26") && !texts[3].contains("passive"));
        assert!(texts[3].matches("rr client").count() == 2 && !texts[2].contains("rr client"));
        assert!(texts[4].contains("route 10.0.0.2/32 via 10.0.0.2%tunl0 onlink;"));
        assert!(texts[4].contains("igp table tunnels") && !texts[0].contains("tunnels"));
        require!(need::tools(&["bird"]));
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in texts {
            std::fs::write(file.path(), &text).unwrap();
            let mut parse = Command::new(find_program("bird").unwrap());
            let output = parse.arg("-p").arg("-c").arg(file.path()).output().unwrap();
            assert!(output.status.success(), "{output:?}\n{text}");
        }
    }
}
