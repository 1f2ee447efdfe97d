//! Entry point for fuzzing a guest's ring. Any bytes are accepted as a guest's memory and must not
//! cause a panic. Invariants are asserted.
//!
//! libFuzzer calls it from `fuzz/fuzz_targets/`. The tests here run a limited number of cases with
//! a stable compiler.

use std::cell::RefCell;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::ring::{Read, Ring, RingDirection, RingLocation, Written};

/// Length of the ring's setup, which precedes the memory, bytes.
pub const SETUP: usize = 16;
/// Bytes of memory at address 0; more memory follows after a gap.
pub const MEMORY: usize = 1 << 16;
/// Start and length of the second memory region.
const BEHIND: (u64, usize) = (1 << 20, 1 << 12);
/// Length of our buffer, including the header.
const FRAME: usize = 65_562;
/// Length of the guard areas around the buffer, which must not change.
const GUARD: usize = 64;

thread_local! {
    /// Reused, because mapping memory takes longer than using it.
    static PLACES: RefCell<(GuestMemoryMmap, Vec<u8>)> = RefCell::new({
        let ranges = [(GuestAddress(0), MEMORY), (GuestAddress(BEHIND.0), BEHIND.1)];
        let memory = GuestMemoryMmap::from_ranges(&ranges).expect("memory for a guest");
        (memory, vec![0; FRAME + 2 * GUARD])
    });
}

/// Sets up a ring and uses it until it is exhausted or fails. The setup is two bytes of size, two
/// of the next entry, two each for the places of descriptors, available and used entries in units
/// of 16 bytes, one of flags, and three unused bytes.
pub fn ring(data: &[u8]) {
    PLACES.with_borrow_mut(|(memory, buffer)| use_ring(data, memory, buffer));
}

fn use_ring(data: &[u8], memory: &GuestMemoryMmap, buffer: &mut [u8]) {
    let Some((setup, bytes)) = data.split_first_chunk::<SETUP>() else { return };
    let word = |at: usize| u16::from_le_bytes([setup[at], setup[at + 1]]);
    let place = RingLocation {
        size: word(0),
        descriptors: u64::from(word(4)) * 16,
        available: u64::from(word(6)) * 16,
        used: u64::from(word(8)) * 16,
    };
    let flag = |bit: u8| setup[10] & 1 << bit != 0;
    let (way, mergeable) =
        (if flag(0) { RingDirection::FromGuest } else { RingDirection::ToGuest }, flag(2));
    let mut guest = vec![0; MEMORY];
    let length = bytes.len().min(MEMORY);
    guest[..length].copy_from_slice(&bytes[..length]);
    memory.write_slice(&guest, GuestAddress(0)).expect("memory that is there");
    let Ok(mut ring) = Ring::new(memory, place, way, word(2), flag(1), None) else { return };
    assert!(place.size.is_power_of_two());
    let mut base = ring.base();
    // A guest that offers nothing more is exhausted after its entries.
    for _ in 0..64 {
        let done = match way {
            RingDirection::FromGuest => {
                buffer.fill(0xa5);
                let read = ring.read(memory, &mut buffer[GUARD..GUARD + FRAME]);
                // The guest's lengths must not exceed the buffer.
                assert!(!matches!(read, Ok(Read::Frame(length)) if length > FRAME));
                assert!(buffer[..GUARD].iter().all(|byte| *byte == 0xa5));
                assert!(buffer[GUARD + FRAME..].iter().all(|byte| *byte == 0xa5));
                match read {
                    Ok(Read::Nothing) => break,
                    Ok(_) => true,
                    Err(_) => return,
                }
            }
            RingDirection::ToGuest => {
                let (mut header, frame) = ([0; 12], [0x5a; 3000]);
                match ring.write(memory, &mut header, &frame, mergeable) {
                    Ok(Written::Done) => true,
                    Ok(Written::NoRoom | Written::TooSmall | Written::Untouched) => false,
                    Err(_) => return,
                }
            }
        };
        let moved = ring.base().wrapping_sub(base);
        // A read consumes one entry per frame; a write some, or none.
        assert_eq!(moved > 0, done);
        assert!(way == RingDirection::ToGuest || moved == 1);
        base = ring.base();
        if !done {
            break;
        }
    }
    for step in 0..4 {
        let held = match step {
            0 => ring.needs_notification(memory).map(drop),
            1 => ring.enable_notification(memory).map(drop),
            2 => ring.suppress_notification(memory),
            _ => ring.replace(memory, place),
        };
        if held.is_err() {
            return;
        }
    }
}
