//! Probes the sound paths of the lab's modes with each offload profile, and counts false findings:
//! `probe_clean [ROUNDS [MODE...]]`, as root. Without modes, all that the lab can build here.
//!
//! Each round probes a testbed once with the classes of `overlane probe --quick`. Some modes do
//! damage or lose packets; such findings are right, and counted apart, see [`FAULTS`].

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use lab::{Capabilities, Mode, Params};
use measure::path_probe::{Access, Extent, RATE, report};
use probe::report::{BadPath, Report};
use session::testbeds::{BuildOptions, stand, subject};
use testbed::Offload;

const PROFILES: [Offload; 3] = [Offload::Full, Offload::NoTunnel, Offload::None];
const MTU: u32 = 1500;
/// Faults of the kernel and of Open vSwitch that modes really have: the mode, and the bad path.
const FAULTS: [fn(&str, &BadPath) -> bool; 2] = [
    // Address translation breaks outer checksums of VXLAN
    // (crates/probe/tests/root/translated.rs), also by `bpf_l4_csum_replace`.
    |mode, bad| {
        let names = ["nat", "floating-ip", "snat", "tap-netmap"];
        let translates = names.iter().any(|name| mode.starts_with(name));
        translates && bad.detail.starts_with("outer checksum wrong")
    },
    // userspace-tso-enable=true of Open vSwitch 3.1 loses GSO packets inside VXLAN: a tunnel between
    // tenants carries pings, and not a single TCP connection.
    |mode, bad| {
        let is_lost_gso = |name: &String| name.contains(" in VXLAN") && name.contains("GSO");
        mode.ends_with("ovs-vlan") && bad.verdict == "lost" && bad.classes.iter().all(is_lost_gso)
    },
];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let rounds: u32 = arguments.next().map_or(Ok(1), |word| word.parse())?;
    let names: Vec<String> = arguments.collect();
    let capabilities = Capabilities::new(testbed::acquire()?)?;
    let wanted =
        BuildOptions { offloads: &[], mtus: &[], steered_to: None, ipv6: false, ecn: false };
    let chosen = |mode: &&&'static dyn Mode| {
        names.is_empty() || names.iter().any(|name| name == mode.name())
    };
    let (mut runs, mut findings, mut all_right) = (0, 0, 0);
    let begun = Instant::now();
    println!("| mode | profile | probes | false findings | right findings | not probed |");
    println!("| --- | --- | ---: | ---: | ---: | --- |");
    for mode in lab::modes().iter().filter(chosen) {
        // The lab cannot build it here.
        if mode.probe(&capabilities).is_err() {
            continue;
        }
        for offload in PROFILES {
            let (mut probed, mut found, mut right, mut reason) = (0, 0, 0, String::new());
            match stand(*mode, Params::new(MTU, offload), None, &wanted) {
                Err(error) => reason = error.to_string(),
                Ok(built) => {
                    let path = subject(&built);
                    for _ in 0..rounds {
                        match report(
                            &path,
                            Access::open,
                            Extent::Quick,
                            RATE,
                            &AtomicBool::new(false),
                        ) {
                            Ok(report) => {
                                probed += 1;
                                if is_right(mode.name(), &report) {
                                    right += 1;
                                } else if report.has_findings() {
                                    found += 1;
                                    eprintln!("{}, {offload}: {:#?}", mode.name(), report.bad);
                                    eprintln!("{:?}", report.mtu);
                                }
                            }
                            Err(error) => reason = error,
                        }
                    }
                }
            }
            println!("| {} | {offload} | {probed} | {found} | {right} | {reason} |", mode.name());
            (runs, findings, all_right) = (runs + probed, findings + found, all_right + right);
        }
    }
    let took = begun.elapsed();
    println!("\n{runs} probes in {took:.0?}, {findings} false findings, {all_right} right ones");
    Ok(findings <= 1)
}

/// Whether all findings are faults that the mode has.
fn is_right(mode: &str, report: &Report) -> bool {
    let is_known = |bad: &BadPath| FAULTS.iter().any(|known| known(mode, bad));
    let has_hole = report.mtu.iter().any(|mtu| mtu.black_hole);
    !has_hole && !report.bad.is_empty() && report.bad.iter().all(is_known)
}
