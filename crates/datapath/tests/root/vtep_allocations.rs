//! The forwarding threads allocate nothing after the first packets in both directions.

use datapath::vtep::Engine;
use endpoint::{CUT, PLAN, Plan, Vtep, everything_crosses, hosts, kernel};
use test_support::allocations::Counting;
use test_support::{need, require};
use testbed::Offload;

use crate::vtep::endpoint;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// IDs of the forwarding threads.
fn forwarding() -> Vec<usize> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        // One may have ended meanwhile.
        let Ok(name) = std::fs::read_to_string(path.join("comm")) else { continue };
        if ["vtep 0", "vtep 1"].contains(&name.trim()) {
            found.push(path.file_name().unwrap().to_str().unwrap().parse().unwrap());
        }
    }
    found
}

#[test]
fn packets_allocate_nothing() {
    require!(need::tun());
    let whole_and_cut = [Offload::Full, Offload::None]
        .map(|profile| [PLAN, CUT].map(|plan| Plan { profile, queues: 2, ..plan }));
    let ring = sys::frame_ring::FrameRing::new(&[], &[], 16, 4096);
    let by_ring = ring.is_ok().then_some(Plan { engine: Engine::Uring, queues: 2, ..PLAN });
    for plan in whole_and_cut.concat().into_iter().chain(by_ring) {
        let [a, b] = hosts(&plan);
        let vtep = Vtep::new(&plan, &a, 0, &plan.config(0, &[1]));
        kernel(&plan, &b, 1, 0);
        everything_crosses(&vtep.tenant, &b);
        let threads = forwarding();
        assert_eq!(threads.len(), 2);
        let count = || threads.iter().map(|id| Counting::of_thread(*id)).sum::<u64>();
        let before = count();
        assert!(before > 0, "their buffers are not counted");
        everything_crosses(&vtep.tenant, &b);
        assert_eq!(count(), before, "{plan:?}");
        let packets = vtep.end().networks[0].back.received;
        assert!(packets > 500, "{packets}");
    }
}
