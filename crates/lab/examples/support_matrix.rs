//! Verbs of a release program on the kernels of distributions, each kernel in an emulated guest:
//! `support_matrix OVERLANE SERIES...` prints a table. `bench/run support-matrix` runs it.
//!
//! `crates/lab/tests/guest/fetch-kernel` fetches a series; `own` is the kernel of Debian 12.
//! `arm64:PROGRAM` runs this program for arm64 on Debian's 6.12 (`fetch-arm64`).

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

#[path = "../tests/guest/qemu.rs"]
#[allow(dead_code)]
mod qemu;

use qemu::Guest;

/// Limit for all verbs together, in emulation.
const LIMIT: Duration = Duration::from_secs(1500);
/// Verbs, each with its commands. The status and output of the last command decide. `$M` runs a
/// mode of the lab. `$B` runs a command in the other namespace of a veth pair with 10.9.0.1 and
/// 10.9.0.2.
const VERBS: [(&str, &str); 11] = [
    ("`lab`, `measure`: VXLAN", "$M vxlan"),
    ("`lab`: Geneve", "$M geneve"),
    ("`lab`: NAT", "$M nat"),
    ("`accel`, VXLAN over IPv4", "$M vxlan+accel"),
    ("`accel`, VXLAN over IPv6", "$M vxlan6+accel"),
    ("`vtep`", "$M vtep"),
    ("`tapbridge`", "$M tapbridge"),
    ("`doctor`", "$O doctor"),
    ("`watch`", "ping -c 5 10.9.0.2 >/dev/null & $O watch --once"),
    (
        "`trace`",
        "(sleep 9; ping -c 9 10.9.0.2) >/dev/null & $O trace --flow 10.9.0.2 --count 1 --duration 60s",
    ),
    (
        "`probe`",
        "$B $O measure serve --bind 10.9.0.2 --token /token >/dev/null & sleep 5; \
         $O probe 10.9.0.2 --token /token --quick",
    ),
];
/// Starts the script of a guest. The guest has busybox in `/bin`.
const SET_UP: &str = r#"
for applet in ping sleep cat mkdir chmod; do /bin/busybox ln -sf busybox /bin/$applet; done
export PATH=/bin:$PATH
mkdir -p /tmp /run /var/lib
chmod 0600 /token
B="ip netns exec b"
M="$O lab run --workloads tcp_rr --blocks 1 --duration 0.2 --warmup 0.05 --offload full --modes"
ip netns add b
ip link add v0 type veth peer name v1
ip link set v1 netns b
ip address add 10.9.0.1/24 dev v0
ip link set v0 up
ip link set lo up
$B ip address add 10.9.0.2/24 dev v1
$B ip link set v1 up
$B ip link set lo up
"#;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(overlane) = arguments.next() else {
        eprintln!("usage: support_matrix OVERLANE SERIES...");
        return ExitCode::from(2);
    };
    let overlane = std::fs::canonicalize(overlane).expect("find the program");
    let overlane = overlane.to_str().expect("a path in UTF-8");
    let columns: Vec<(String, Vec<String>)> =
        arguments.map(|series| column(overlane, &series)).collect();
    let kernels: Vec<&str> = columns.iter().map(|(kernel, _)| kernel.as_str()).collect();
    println!("| verb | {} |\n| --- |{}", kernels.join(" | "), " --- |".repeat(kernels.len()));
    for (at, (verb, _)) in VERBS.iter().enumerate() {
        let cells: Vec<&str> = columns.iter().map(|(_, cells)| cells[at].as_str()).collect();
        println!("| {verb} | {} |", cells.join(" | "));
    }
    ExitCode::SUCCESS
}

/// Returns the version of a kernel, and the outcome of each verb.
fn column(overlane: &str, series: &str) -> (String, Vec<String>) {
    let (overlane, guest) = match series.split_once("arm64:") {
        Some((_, program)) => (program, Guest::of_arm64()),
        None if series == "own" => (overlane, Guest::find()),
        None => (overlane, Guest::of_series(series).map(Guest::with_one_thread)),
    };
    let guest = guest.unwrap_or_else(|reason| panic!("{series}: {reason}"));
    let mut script = format!("O={overlane}{SET_UP}");
    for (at, (_, commands)) in VERBS.iter().enumerate() {
        script += &format!(
            "({commands}) >/out 2>&1\nstatus=$?\n\
             echo '@verb {at}'\ncat /out\necho\necho \"@status $status\"\n"
        );
    }
    script += "echo '@verb kernel'; cat /proc/sys/kernel/osrelease; echo '@status 0'\n";
    let token = b"c3VwcG9ydCBtYXRyaXggb2YgYSBndWVzdCBvbiBsb29wYmFjayBvbmx5\n".to_vec();
    let output = guest
        .within(LIMIT)
        .with_programs(&["ip", "tc", "ethtool", overlane])
        .containing("script", script.into_bytes())
        .containing("token", token)
        .run(Path::new("/bin/dash"), &["/script"]);
    let found = |name: &str| {
        let text = output.stdout.split(&format!("@verb {name}\n")).nth(1)?;
        let (text, rest) = text.split_once("@status ")?;
        Some((text.trim(), rest.lines().next()?))
    };
    let Some((kernel, _)) = found("kernel") else {
        panic!("{series}: the guest did not finish: {output:#?}");
    };
    let cells = VERBS.iter().enumerate().map(|(at, (verb, _))| {
        let (text, status) = found(&at.to_string()).expect("the guest has finished");
        eprintln!("--- {kernel}: {verb}: exit status {status}\n{text}");
        outcome(text, status)
    });
    (kernel.to_owned(), cells.collect())
}

/// Describes the output of a verb.
fn outcome(text: &str, status: &str) -> String {
    // 10: findings, the purpose of `doctor` and `probe`.
    if matches!(status, "0" | "10") {
        return "works".to_owned();
    }
    // A run of the lab ends with the reason below this heading.
    let below = text.split("Not measured\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let error = || text.lines().find(|line| line.starts_with("error: "));
    let reason = below.or_else(error).or_else(|| text.lines().next_back()).unwrap_or("no output");
    let words: Vec<&str> = reason.split_whitespace().collect();
    let reason = words.join(" ");
    let reason = reason.trim_start_matches("- ").trim_start_matches("error: ");
    format!("exit {status}: {}", reason.replace('|', "\\|"))
}
