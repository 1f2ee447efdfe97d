//! Mixed traffic among malformed packets, while endpoints with their TAPs come and
//! go: `make soak-vtep SOAK=3600`. Without being asked for longer, two rounds.

use std::time::{Duration, Instant};

use testbed::Host;

use super::*;

/// Rounds of which each differs: afterwards, memory that the allocator keeps for
/// threads that are gone has been asked for once.
const KINDS: usize = 12;

/// How much may come to the process's memory after these, bytes.
const GROWTH: u64 = 32 << 20;

/// Datagrams for the tunnel's port, as nobody would send them.
struct Noise {
    state: u64,
    known: UdpSocket,
    stranger: UdpSocket,
    to: SocketAddr,
}

impl Noise {
    fn new(plan: &Plan, host: &Host) -> Noise {
        let from = |end| {
            let at = SocketAddr::new(plan.underlay(end), 0);
            host.netns().run(|| UdpSocket::bind(at)).unwrap().unwrap()
        };
        let to = SocketAddr::new(plan.underlay(0), PORT);
        Noise { state: 0x9e37_79b9_7f4a_7c15, known: from(1), stranger: from(3), to }
    }

    fn next(&mut self, below: u64) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % below) as usize
    }

    fn send(&mut self, count: usize) {
        for _ in 0..count {
            let length = [0, 7, 8, 20, 60, 200, 1400, 9000][self.next(8)];
            let mut bytes: Vec<u8> = (0..length).map(|_| self.next(256) as u8).collect();
            // Most get past the first checks.
            if self.next(4) > 0 && bytes.len() >= 60 {
                let vni = VNI + self.next(2) as u32;
                bytes[..8].copy_from_slice(&packet::vxlan::header(Vni::new(vni).unwrap()));
                bytes[8..14].fill(0xff);
                bytes[14..20].copy_from_slice(&[2, 0, 0, 0, 9, self.next(256) as u8]);
                bytes[20..22].copy_from_slice(&[8, if self.next(3) == 0 { 6 } else { 0 }]);
                bytes[22] = if self.next(3) == 0 { 0x4f } else { 0x45 };
                bytes[31] = [6, 17, 1, 99][self.next(4)];
            }
            let socket = if self.next(8) == 0 { &self.stranger } else { &self.known };
            // A full buffer is as good as another loss.
            let _ = socket.send_to(&bytes, self.to);
        }
    }
}

/// Resident memory of this process, bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn nothing_grows_and_every_packet_has_a_fate() {
    if !privileged() {
        return;
    }
    let asked = std::env::var("OVERLANE_SOAK_SECONDS").ok();
    let duration = Duration::from_secs(asked.map_or(0, |text| text.parse().expect("seconds")));
    let start = Instant::now();
    let mut baseline = None;
    let (mut rounds, mut received, mut dropped) = (0, 0, 0);
    while rounds < 2 || start.elapsed() < duration {
        let profile = [Offload::Full, Offload::None, Offload::NoTunnel][rounds % 3];
        let way = if rounds % 4 < 2 { HandOver::TunnelGso } else { HandOver::UdpSegment };
        let plan = Plan { profile, hand_over: way, queues: 1 + rounds % 2, ..PLAN };
        let [a, b] = hosts(&plan);
        let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1, 2]));
        let mut noise = Noise::new(&plan, &b);
        if rounds % 2 == 0 {
            kernel(&plan, &b, 1, 0);
            std::thread::scope(|scope| {
                scope.spawn(|| noise.send(10_000));
                everything_crosses(&vtep.tenant, &b);
            });
        } else {
            // Remote ends come and go; so does this one, with its TAP, at the end.
            let peer = Vtep::new(&plan, &b, 1, &plan.config(1, &[0]));
            for _ in 0..3 {
                let third = Vtep::new(&plan, &b, 2, &plan.config(2, &[0]));
                std::thread::scope(|scope| {
                    scope.spawn(|| noise.send(3000));
                    ping(&vtep.tenant, INNER_V4[2], 1000);
                    everything_crosses(&vtep.tenant, &peer.tenant);
                });
                third.end();
            }
            peer.end();
        }
        noise.send(1000);
        let report = vtep.end();
        for c in [&report.networks[0].out, &report.networks[0].back, &report.strangers] {
            received += c.received;
            dropped += c.dropped();
        }
        assert!(report.networks[0].learned <= 4096, "{report:?}");
        rounds += 1;
        let now = memory();
        eprintln!(
            "{:.0} s, {rounds} rounds: {received} packets, {dropped} dropped, {} KiB",
            start.elapsed().as_secs_f64(),
            now >> 10
        );
        if rounds >= KINDS {
            let first = *baseline.get_or_insert(now);
            assert!(now < first + GROWTH, "{first} bytes after {KINDS} rounds, {now} now");
        }
    }
    assert!(dropped > 1000 && received > dropped, "{received} received, {dropped} dropped");
}
