//! Measures the cost of crossing from a sandbox to its host and back: CPU time of the thread that
//! sends a 64-byte datagram, including all work that the kernel does synchronously on its CPU up to
//! the receiver's socket. Compares the slow path, the fast path in the sending host only (egress),
//! in the receiving host only (ingress) and in both, in interleaved rounds.
//!
//! `cargo run -p overlane-accel --example border_cost [ROUNDS]`, as root.

use std::net::UdpSocket;
use std::process::ExitCode;

use nix::time::{ClockId, clock_gettime};
use testbed::Offload;

#[path = "../tests/root/fastpath/pair.rs"]
#[allow(dead_code)]
mod pair;
#[path = "../tests/root/fastpath/sandbox.rs"]
#[allow(dead_code)]
mod sandbox;
#[path = "../tests/root/fastpath/underlay.rs"]
#[allow(dead_code)]
mod underlay;

const DATAGRAMS: u32 = 40_000;
/// (name, fast path in a, in b)
const STATES: [(&str, bool, bool); 4] = [
    ("slow", false, false),
    ("egress", true, false),
    ("ingress", false, true),
    ("both", true, true),
];

fn main() -> ExitCode {
    if let Err(missing) = test_support::need::root() {
        eprintln!("{missing}");
        return ExitCode::FAILURE;
    }
    let rounds: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(10);
    let pair = pair::Pair::sandboxed(Offload::Full, true);
    let accels = pair.accelerate();
    let open = |host: &testbed::Host| host.netns().run(|| UdpSocket::bind("0.0.0.0:5406")).unwrap();
    let (from, _to) = (open(&pair.tenant_a).unwrap(), open(&pair.tenant_b).unwrap());
    from.connect((pair::TENANT_B, 5406)).unwrap();
    let mut nanos = [const { Vec::new() }; 4];
    for round in 0..rounds {
        for at in 0..STATES.len() {
            // Each state comes first equally often.
            let at = (at + round) % STATES.len();
            let (name, a, b) = STATES[at];
            accels[0].pause(!a);
            accels[1].pause(!b);
            testbed::poll(name, pair::LIMIT, || {
                let hits = || {
                    let [a, b] = accels.each_ref().map(accel::Accel::status);
                    let sent = a.packets("encap_hit") + a.packets("encap_shortcut");
                    [sent, b.packets("decap_hit")]
                };
                let before = hits();
                pair.ping(&[]);
                let now = hits();
                let taken = [now[0] > before[0], now[1] > before[1]];
                Ok(if taken == [a, b] { Ok(()) } else { Err(format!("{taken:?}")) })
            })
            .unwrap();
            let send = |count: u32| (0..count).for_each(|_| drop(from.send(&[0; 64])));
            send(1000);
            let begin = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
            send(DATAGRAMS);
            let end = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
            let spent = std::time::Duration::from(end) - std::time::Duration::from(begin);
            nanos[at].push(spent.as_nanos() as f64 / f64::from(DATAGRAMS));
        }
    }
    println!("CPU time of the sender, ns a datagram, and ratio to slow of the same round;");
    println!("{rounds} rounds of {DATAGRAMS}");
    println!("{:<10} {:>8} {:>8} {:>8} {:>8}", "", "median", "ratio", "smallest", "largest");
    let median = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        (sorted[sorted.len() / 2], sorted[0], sorted[sorted.len() - 1])
    };
    for (at, (name, ..)) in STATES.iter().enumerate() {
        let ratios: Vec<f64> = nanos[at].iter().zip(&nanos[0]).map(|(n, slow)| n / slow).collect();
        let (middle, least, most) = median(&ratios);
        let time = median(&nanos[at]).0;
        println!("{name:<10} {time:>8.0} {middle:>8.2} {least:>8.2} {most:>8.2}");
    }
    ExitCode::SUCCESS
}
