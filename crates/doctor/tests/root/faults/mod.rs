//! Every check finds its fault, and nothing on healthy hosts.

pub(crate) mod bench;
mod fixes;
pub(crate) mod list;
mod make;
mod nodes;
mod swarm;

use std::collections::BTreeMap;
use std::sync::Mutex;

use bench::{build, judge, others, read};
use doctor::{CHECKS, Severity};
use lab::{Capabilities, modes};
use test_support::{left_out, need, require, some_at_once};
use testbed::Privileges;

fn privileged() -> Result<Capabilities, String> {
    need::networks()?;
    Ok(Capabilities::new(Privileges::Root).unwrap())
}

/// Findings that are inherent in a mode.
fn naive(mode: &str) -> &'static [&'static str] {
    match mode {
        // A plain read and write loop, as the reference.
        "tap" | "tap-netmap-naive" => &["OV044"],
        // Neutron's router does not clamp the MSS: its tenants' own MTU limits it.
        "floating-ip" => &["OV019"],
        _ => &[],
    }
}

/// Variants without a difference that a check reads. Each takes some seconds to build.
fn is_as_another(mode: &str) -> bool {
    mode.starts_with("k8s-service")
        || ["k8s-node", "k8s-hairpin", "k8s-external"].contains(&mode)
        || (mode.starts_with("bgp-") && mode != "bgp-frr")
        || (mode.starts_with("floating-ip") && mode != "floating-ip")
        || (mode.starts_with("vrouter-") && mode != "vrouter-ovs")
        || mode.starts_with("snat")
        || mode == "evpn-rr+accel"
        || (mode.ends_with("+accel") && (mode.starts_with("k8s") || mode.starts_with("flannel")))
}

/// Makes each check's fault, and runs every check on every healthy mode.
#[test]
fn each_fault_is_found_and_health_is_not() {
    let machine = require!(privileged());
    let table: Mutex<BTreeMap<&str, (bool, u32)>> =
        Mutex::new(CHECKS.iter().map(|check| (check.code, (false, 0))).collect());
    let mut problems = Vec::new();
    // Namespaces inside guests cannot be entered.
    let stands = |mode: &&&dyn lab::Mode| !mode.in_guests() && !is_as_another(mode.name());
    for mode in modes().iter().filter(stands) {
        if let Err(unsupported) = mode.probe(&machine) {
            left_out(&format!("{}: {}", mode.name(), unsupported.reason));
            continue;
        }
        let diagnosis = judge(mode.name(), &read(&build(mode.name(), 1500), None));
        for finding in &diagnosis.findings {
            let expected = naive(mode.name()).contains(&finding.code.as_str());
            if finding.severity >= Severity::Warn && !expected {
                let mut table = table.lock().unwrap();
                let entry = table.iter_mut().find(|(code, _)| **code == finding.code);
                entry.unwrap().1.1 += 1;
                problems.push(format!("{}: {:?}", mode.name(), finding));
            }
        }
    }
    let found = some_at_once(list::FAULTS, |fault| {
        let name = format!("{}-{}", fault.code, fault.mode);
        let diagnosis = judge(&name, &fault.host());
        let found = diagnosis.findings.iter().any(|finding| finding.code == fault.code);
        table.lock().unwrap().get_mut(fault.code).unwrap().0 |= found;
        let mut problems = Vec::new();
        if !found {
            eprintln!("{}: {:?}", fault.code, diagnosis.skipped);
            problems.push(format!("{} in {}: not found", fault.code, fault.mode));
        }
        let expected = naive(fault.mode);
        let mut strange = others(&diagnosis, fault.code, Severity::Warn);
        strange.retain(|text| expected.iter().all(|code| !text.starts_with(code)));
        // The shaper that fills the socket's buffer delays packets for seconds.
        strange.retain(|text| fault.code != "OV032" || !text.starts_with("OV079"));
        if !strange.is_empty() {
            problems.push(format!("{} in {}: also {strange:?}", fault.code, fault.mode));
        }
        problems
    });
    problems.extend(found.into_iter().flatten());
    println!("check  detected  false alarms");
    for (code, (detected, alarms)) in table.lock().unwrap().iter() {
        println!("{code}  {:<8}  {alarms}", if *detected { "yes" } else { "NO" });
        // `cases` makes the other faults, and a guest those that this kernel lacks.
        let is_of_guest = crate::guest::covers(code);
        if !detected && !is_of_guest && !crate::cases::covers(code) {
            problems.push(format!("{code}: no fault of it was found"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
