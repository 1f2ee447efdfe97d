//! Probes the sound paths of the lab's modes with each offload profile, and counts false findings:
//! `probe_clean [ROUNDS [MODE...]]`, as root. Without modes, all that the lab can build here.
//!
//! Each round probes a testbed once with the classes of `overlane probe --quick`.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use lab::{Capabilities, Mode, Params};
use measure::path_probe::{Extent, RATE, report};
use session::testbeds::{BuildOptions, stand, subject};
use testbed::Offload;

const PROFILES: [Offload; 3] = [Offload::Full, Offload::NoTunnel, Offload::None];
const MTU: u32 = 1500;

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
    let wanted = BuildOptions { offloads: &[], mtus: &[], steered_to: None, ipv6: false };
    let chosen = |mode: &&&'static dyn Mode| {
        names.is_empty() || names.iter().any(|name| name == mode.name())
    };
    let (mut runs, mut findings) = (0, 0);
    let begun = Instant::now();
    println!("| mode | profile | probes | false findings | not probed |");
    println!("| --- | --- | ---: | ---: | --- |");
    for mode in lab::modes().iter().filter(chosen) {
        // The lab cannot build it here.
        if mode.probe(&capabilities).is_err() {
            continue;
        }
        for offload in PROFILES {
            let (mut probed, mut found, mut reason) = (0, 0, String::new());
            match stand(*mode, Params::new(MTU, offload), None, &wanted) {
                Err(error) => reason = error.to_string(),
                Ok(built) => {
                    let path = subject(&built);
                    for _ in 0..rounds {
                        match report(&path, Extent::Quick, RATE, &AtomicBool::new(false)) {
                            Ok(report) => {
                                probed += 1;
                                if report.has_findings() {
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
            println!("| {} | {offload} | {probed} | {found} | {reason} |", mode.name());
            (runs, findings) = (runs + probed, findings + found);
        }
    }
    println!("\n{runs} probes in {:.0?}, {findings} false findings", begun.elapsed());
    Ok(findings <= 1)
}
