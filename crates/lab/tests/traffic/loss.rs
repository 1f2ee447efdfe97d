//! What a fault costs traffic that flows meanwhile.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lab::Network;

/// Sessions come back within seconds, where a timer of the protocol goes before.
const RECOVERY: Duration = Duration::from_secs(120);

/// Waits until something is so.
pub fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    testbed::poll(what, RECOVERY, || Ok(if ready() { Ok(()) } else { Err(String::new()) }))
        .unwrap();
}

/// Runs `fault` while a datagram is sent each millisecond. Returns when some of those that
/// were sent after it have arrived; prints what was lost.
pub fn lossy(network: &Network, what: &str, fault: impl FnOnce()) {
    let target = network.address.target;
    let (stop, sent, last) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (server, client) = (network.server().netns(), network.client().netns());
    let listening = server.run(|| UdpSocket::bind(network.address.listen)).unwrap().unwrap();
    listening.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let sending = client.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    let (arrived, twice, silence) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                let number = sent.load(Ordering::Relaxed) + 1;
                // A datagram that no route leads on is one of the lost.
                let _ = sending.send_to(&number.to_be_bytes(), target);
                sent.store(number, Ordering::Relaxed);
                let due = begun + Duration::from_millis(number);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        let receiving = scope.spawn(|| {
            let (mut arrived, mut twice) = (BTreeSet::new(), 0);
            let (mut before, mut silence): (Option<Instant>, _) = (None, Duration::ZERO);
            let mut bytes = [0; 8];
            while !stop.load(Ordering::Relaxed) {
                if listening.recv(&mut bytes).is_err() {
                    continue;
                }
                let now = Instant::now();
                silence = silence.max(before.map_or(Duration::ZERO, |before| now - before));
                before = Some(now);
                let number = u64::from_be_bytes(bytes);
                // With an address in two hosts, a datagram may go by both.
                twice += u64::from(!arrived.insert(number));
                last.store(number, Ordering::Relaxed);
            }
            (arrived.len() as u64, twice, silence)
        });
        let flows = |after: u64| {
            wait_for("datagrams that arrive", || last.load(Ordering::Relaxed) > after + 50);
        };
        flows(0);
        fault();
        flows(sent.load(Ordering::Relaxed));
        stop.store(true, Ordering::Relaxed);
        receiving.join().unwrap()
    });
    let lost = sent.into_inner().saturating_sub(arrived);
    println!(
        "{what}: {lost} datagrams lost, {twice} arrived twice, {:.1} s without any",
        silence.as_secs_f64()
    );
}
