//! What fuzzing calls for a guest's ring: any bytes are a guest's memory, and must cause
//! no panic. What has to hold for them is asserted.
//!
//! libFuzzer calls it from `fuzz/fuzz_targets/`, the tests here for a bounded number of
//! cases with a stable compiler.

use std::cell::RefCell;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::ring::{Place, Read, Ring, Way, Written};

/// Bytes before those of the memory: how the ring is set up.
pub const SETUP: usize = 16;
/// Bytes of memory at address 0; more is behind a gap.
pub const MEMORY: usize = 1 << 16;
/// Where more memory begins, and its bytes.
const BEHIND: (u64, usize) = (1 << 20, 1 << 12);
/// What the buffers of ours have, header and all.
const FRAME: usize = 65_562;
/// Bytes around a buffer that stay what they are.
const GUARD: usize = 64;

thread_local! {
    /// Kept: to map memory takes longer than to use it.
    static PLACES: RefCell<(GuestMemoryMmap, Vec<u8>)> = RefCell::new({
        let ranges = [(GuestAddress(0), MEMORY), (GuestAddress(BEHIND.0), BEHIND.1)];
        let memory = GuestMemoryMmap::from_ranges(&ranges).expect("memory for a guest");
        (memory, vec![0; FRAME + 2 * GUARD])
    });
}

/// A ring, used as far as it goes. Its setup: two bytes of size, two of the next entry,
/// two each of where descriptors, available and used entries are in 16 bytes, one of
/// flags, three without a meaning.
pub fn ring(data: &[u8]) {
    PLACES.with_borrow_mut(|(memory, buffer)| use_ring(data, memory, buffer));
}

fn use_ring(data: &[u8], memory: &GuestMemoryMmap, buffer: &mut [u8]) {
    let Some((setup, bytes)) = data.split_first_chunk::<SETUP>() else { return };
    let word = |at: usize| u16::from_le_bytes([setup[at], setup[at + 1]]);
    let place = Place {
        size: word(0),
        descriptors: u64::from(word(4)) * 16,
        available: u64::from(word(6)) * 16,
        used: u64::from(word(8)) * 16,
    };
    let flag = |bit: u8| setup[10] & 1 << bit != 0;
    let (way, mergeable) = (if flag(0) { Way::FromGuest } else { Way::ToGuest }, flag(2));
    let mut guest = vec![0; MEMORY];
    let length = bytes.len().min(MEMORY);
    guest[..length].copy_from_slice(&bytes[..length]);
    memory.write_slice(&guest, GuestAddress(0)).expect("memory that is there");
    let Ok(mut ring) = Ring::new(memory, place, way, word(2), flag(1)) else { return };
    assert!(place.size.is_power_of_two());
    let mut base = ring.base();
    // A guest that offers nothing more has no more than its entries.
    for _ in 0..64 {
        let done = match way {
            Way::FromGuest => {
                buffer.fill(0xa5);
                let read = ring.read(memory, &mut buffer[GUARD..GUARD + FRAME]);
                // The guest's lengths reach no further than the buffer.
                assert!(!matches!(read, Ok(Read::Frame(length)) if length > FRAME));
                assert!(buffer[..GUARD].iter().all(|byte| *byte == 0xa5));
                assert!(buffer[GUARD + FRAME..].iter().all(|byte| *byte == 0xa5));
                match read {
                    Ok(Read::Nothing) => break,
                    Ok(_) => true,
                    Err(_) => return,
                }
            }
            Way::ToGuest => {
                let (mut header, frame) = ([0; 12], [0x5a; 3000]);
                match ring.write(memory, &mut header, &frame, mergeable) {
                    Ok(Written::Done) => true,
                    Ok(Written::NoRoom | Written::TooSmall) => false,
                    Err(_) => return,
                }
            }
        };
        let moved = ring.base().wrapping_sub(base);
        // A reader takes one entry a frame; a writer some, or none.
        assert_eq!(moved > 0, done);
        assert!(way == Way::ToGuest || moved == 1);
        base = ring.base();
        if !done {
            break;
        }
    }
    for step in 0..4 {
        let held = match step {
            0 => ring.is_to_be_told(memory).map(drop),
            1 => ring.wants_to_be_told(memory).map(drop),
            2 => ring.need_not_be_told(memory),
            _ => ring.replace(memory, place),
        };
        if held.is_err() {
            return;
        }
    }
}
