//! Root tests of the fast path on the kernels of distributions, each in an emulated guest:
//! `kernels PROGRAM SERIES...` prints a table. PROGRAM is the built test program (`root-…`).
//! `bench/run accel-kernels` runs it. Each kernel's verifier must accept the programs, and packets must
//! take the fast path.
//!
//! `crates/lab/tests/guest/fetch-kernel` fetches a series; `own` is the kernel of Debian 12.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

#[path = "../../lab/tests/guest/qemu.rs"]
#[allow(dead_code)]
mod qemu;

use qemu::Guest;

/// Limit of a test. The verifier takes most of it, in emulation.
const LIMIT: Duration = Duration::from_secs(1500);
const TESTS: [&str; 4] = [
    "fastpath::verdicts::a_connection_through_the_rules_of_a_real_node_goes_fast",
    "fastpath::bridged::connections_across_a_bridge_go_fast_where_the_rules_let_them",
    "fastpath::invalid::counters::counters_may_be_ignored",
    "fastpath::invalid::counters::counters_that_count_nothing_are_no_reason",
];
/// Programs that the tests run.
const PROGRAMS: [&str; 13] = [
    "bash",
    "bridge",
    "conntrack",
    "dash",
    "ethtool",
    "ip",
    "ip6tables-nft",
    "iptables-nft",
    "nft",
    "ping",
    "sysctl",
    "tc",
    "timeout",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, series @ ..] = &arguments[..] else {
        eprintln!("usage: kernels PROGRAM SERIES...");
        return ExitCode::from(2);
    };
    let mut failed = false;
    println!("| kernel | test | result |\n| --- | --- | --- |");
    for series in series {
        for test in TESTS {
            let (kernel, result) = run(program, series, test);
            failed |= result != "passes";
            println!("| {kernel} | `{test}` | {result} |");
        }
    }
    ExitCode::from(u8::from(failed))
}

/// Runs a test in a guest. Returns the kernel's version, and the result.
fn run(program: &str, series: &str, test: &str) -> (String, String) {
    let guest = match series {
        "own" => Guest::find(),
        _ => Guest::of_series(series),
    };
    let mut guest = guest.unwrap_or_else(|reason| panic!("{series}: {reason}")).with_one_thread();
    if series == "ubuntu-26.04" {
        // Its AppArmor filters packets, so accel refuses (AX207).
        guest = guest.booting_with("apparmor=0");
    }
    // Busybox's shell prefers its own `ip` and `ping` to this machine's programs.
    let script = format!(
        "/bin/busybox rm -f /usr/bin/sh; /bin/busybox ln -s dash /usr/bin/sh\n\
         for applet in cat mkdir rm ln sleep mount; do /bin/busybox ln -sf busybox /bin/$applet; done\n\
         export PATH=/usr/sbin:/usr/bin:/sbin:/bin OVERLANE_STRICT=1\n\
         /sbin/modprobe -a br_netfilter nf_conntrack; cat /proc/sys/kernel/osrelease\n\
         {program} --exact {test} --nocapture --include-ignored; echo \"@status $?\"\n"
    );
    let output = guest
        .within(LIMIT)
        .with_programs(&PROGRAMS)
        .with_programs(&[program])
        .containing("script", script.into_bytes())
        .run(Path::new("/bin/dash"), &["/script"]);
    let kernel = output.stdout.lines().next().unwrap_or(series).to_owned();
    if output.stdout.contains("1 passed") {
        return (kernel, "passes".to_owned());
    }
    eprintln!("--- {kernel}: {test}\n{output:#?}");
    let reason = output.stderr.lines().find(|line| line.contains("rror") || line.contains("skip"));
    (kernel, reason.unwrap_or("fails").trim().replace('|', "\\|"))
}
