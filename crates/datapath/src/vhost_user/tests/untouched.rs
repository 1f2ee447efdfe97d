//! Guests that offer memory that nobody has touched, near the limit of this process's memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use netstate::memory_limit::MemoryLimits;
use nix::sys::stat::fstat;
use sys::tap::Offload;
use test_support::program::until;
use test_support::{need, require};
use vm_memory::{Bytes, GuestAddress};

use super::guest::{Guest, MEMORY, frame, gso_packet};
use super::{Joined, PLAIN, SIZE};
use crate::counters::DropReason;
use crate::tapbridge::Side;
use crate::vhost_user::features::offered;
use crate::vhost_user::untouched::MemoryLimit;

/// First untouched address.
const UNTOUCHED: u64 = 5 << 20;
const PAGE: u64 = 4096;

/// Files of a control group, in a directory of a test.
struct Group(tempfile::TempDir);

impl Group {
    const LIMIT: u64 = 4 << 20;

    fn new() -> (Group, Arc<MemoryLimit>) {
        let group = Group(tempfile::tempdir().unwrap());
        group.write("memory.max", Group::LIMIT);
        group.write("memory.current", 0);
        fs::write(group.0.path().join("memory.stat"), "active_file 0\ninactive_file 0\n").unwrap();
        let limit = MemoryLimit::of(MemoryLimits::of(&[group.0.path().to_owned()]));
        (group, limit)
    }

    fn write(&self, name: &str, value: u64) {
        fs::write(self.0.path().join(name), format!("{value}\n")).unwrap();
    }
}

/// Bytes that exist of a guest's memory.
fn existing(guest: &Guest) -> u64 {
    // Blocks have 512 bytes, independent of the size of pages (stat(2)).
    fstat(&guest.file).unwrap().st_blocks as u64 * 512
}

/// Offers each receive buffer of an untouched page of its own.
fn offer_untouched(guest: &mut Guest, from: u64) {
    for index in 0..SIZE {
        let at = from + PAGE * u64::from(index);
        guest.rings[0].descriptor(&guest.memory, index, (at, 2048, 2, 0));
        guest.rings[0].offer(&guest.memory, index);
    }
}

#[test]
fn untouched_receive_buffers_are_returned_empty_near_the_limit() {
    let (group, limit) = Group::new();
    let joined = Joined::within(1, Some(limit));
    let mut left = joined.up(Side::Left, PLAIN);
    let mut right = Guest::up_without_buffers(&joined.path(Side::Right), PLAIN, 1, MEMORY);
    // With room below the limit, a guest may offer memory that it has never used.
    offer_untouched(&mut right, UNTOUCHED);
    left.transmit([0; 12], &frame(100), false);
    let (head, length) = loop {
        if let Some(used) = right.rings[0].used(&right.memory) {
            break used;
        }
        std::thread::yield_now();
    };
    assert_eq!((head, length > 100), (0, true));

    group.write("memory.current", Group::LIMIT);
    // More than the ring may take before it checks the limit again.
    let (before, mut empty) = (existing(&right), 0);
    for _ in 1..SIZE {
        left.transmit([0; 12], &frame(100), false);
    }
    joined.settled(Side::Left);
    while let Some((_, length)) = right.rings[0].used(&right.memory) {
        empty += u64::from(length == 0);
    }
    let counters = joined.settled(Side::Left);
    assert!(empty > 0 && empty == counters.dropped_by(DropReason::Memory), "{counters:?}");
    let taken = existing(&right) - before;
    assert!(taken <= Group::LIMIT / 64, "{taken} bytes");

    // Memory that the guest has used itself costs this process nothing.
    for index in 0..SIZE {
        let at = GuestAddress(UNTOUCHED + PAGE * u64::from(index));
        right.memory.write_obj(0u8, at).unwrap();
        right.rings[0].offer(&right.memory, index);
    }
    for _ in 0..SIZE {
        left.transmit([0; 12], &frame(100), false);
    }
    assert_eq!(joined.settled(Side::Left).dropped(), empty);
}

#[test]
fn untouched_frames_and_tables_of_a_sender_are_refused_near_the_limit() {
    let (group, limit) = Group::new();
    let joined = Joined::within(1, Some(limit));
    let mut left = joined.up(Side::Left, PLAIN);
    let mut right = joined.up(Side::Right, PLAIN);
    left.transmit([0; 12], &frame(100), false);
    assert!(right.expect().1 == frame(100));
    group.write("memory.current", Group::LIMIT);
    let (before, sent) = (existing(&left), 400);
    for index in 0..sent {
        let at = UNTOUCHED + PAGE * index;
        left.rings[1].descriptor(&left.memory, 0, (at, 100, 0, 0));
        left.rings[1].offer(&left.memory, 0);
        until("the frame is taken", || left.rings[1].used(&left.memory).is_some());
    }
    let counters = joined.settled(Side::Left);
    let refused = counters.dropped_by(DropReason::Malformed);
    // Some are read from the allowance: frames of zeros.
    assert_eq!(refused + counters.forwarded, sent + 1, "{counters:?}");
    assert!(refused > sent / 2, "{counters:?}");
    let taken = existing(&left) - before;
    assert!(taken <= Group::LIMIT / 64, "{taken} bytes");
    // A table that the driver has not written is no table.
    left.rings[1].descriptor(&left.memory, 0, (UNTOUCHED + PAGE * sent, 64, 4, 0));
    left.rings[1].offer(&left.memory, 0);
    joined.assert_event(Side::Left, "in memory that the guest has never used");
}

/// A memory control group with this process in it.
struct Limited {
    group: PathBuf,
    above: PathBuf,
}

impl Limited {
    fn new(bytes: u64) -> Result<Limited, String> {
        let first = Path::new("/sys/fs/cgroup/memory");
        let version_1 = first.join("cgroup.procs").exists();
        let above = if version_1 { first } else { Path::new("/sys/fs/cgroup") };
        let group = above.join(format!("overlane-test-{}", std::process::id()));
        let what = |error: std::io::Error| format!("a memory limit for a control group: {error}");
        fs::create_dir(&group).map_err(what)?;
        let limited = Limited { group, above: above.to_owned() };
        let name = if version_1 { "memory.limit_in_bytes" } else { "memory.max" };
        fs::write(limited.group.join(name), bytes.to_string()).map_err(what)?;
        fs::write(limited.group.join("cgroup.procs"), std::process::id().to_string())
            .map_err(what)?;
        Ok(limited)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = fs::write(self.above.join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(&self.group);
    }
}

/// Without the check, the kernel kills this process.
#[test]
fn a_guest_cannot_make_the_kernel_kill_this_process() {
    const LIMIT: u64 = 32 << 20;
    const SIZE_OF_GUEST: u64 = 96 << 20;
    require!(need::root());
    let limited = match Limited::new(LIMIT) {
        Ok(limited) => limited,
        Err(reason) => return test_support::skipped(&reason),
    };
    let features = offered(Offload::PLAIN, 1);
    let joined = Joined::new(1);
    let mut left = joined.up(Side::Left, features);
    let path = joined.path(Side::Right);
    let mut right = Guest::up_without_buffers(&path, features, 1, SIZE_OF_GUEST);
    offer_untouched(&mut right, UNTOUCHED);
    let mut next = UNTOUCHED + PAGE * u64::from(SIZE);
    let (header, packet) = gso_packet(50_000, 1448);
    while next < SIZE_OF_GUEST - PAGE * u64::from(SIZE) {
        left.transmit(header, &packet, false);
        joined.settled(Side::Left);
        while let Some((head, _)) = right.rings[0].used(&right.memory) {
            // Each buffer is of another page.
            right.rings[0].descriptor(&right.memory, head as u16, (next, 2048, 2, 0));
            right.rings[0].offer(&right.memory, head as u16);
            next += PAGE;
        }
    }
    let counters = joined.settled(Side::Left);
    assert!(counters.forwarded > 0 && counters.dropped_by(DropReason::Memory) > 0, "{counters:?}");
    assert!(existing(&right) < LIMIT, "{} bytes", existing(&right));
    drop((joined, left, right, limited));
}
