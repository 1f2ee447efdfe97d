//! Seed rings for fuzzing, also written to `fuzz/corpus` by `cargo xtask corpus`.

/// Offsets of the ring's parts, in bytes.
pub const AVAILABLE: usize = 0x400;
pub const USED: usize = 0x800;
pub const SIZE: u16 = 32;

/// Flags: the guest sends; event indices are used; buffers are merged.
pub const SENDS: u8 = 1;
pub const INDICES: u8 = 2;
pub const MERGES: u8 = 4;

/// Returns the bytes of a descriptor.
pub fn descriptor(address: u64, length: u32, flags: u16, next: u16) -> Vec<u8> {
    let mut bytes = address.to_le_bytes().to_vec();
    bytes.extend(length.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(next.to_le_bytes());
    bytes
}

/// Returns a ring whose next entry is `base`, with these descriptors and heads, of which `ahead`
/// are offered.
pub fn ring(flags: u8, base: u16, descriptors: &[u8], heads: &[u16], ahead: u16) -> Vec<u8> {
    let mut data = Vec::new();
    let place = [0, AVAILABLE / 16, USED / 16].map(|at| at as u16);
    for word in [SIZE, base].into_iter().chain(place) {
        data.extend(word.to_le_bytes());
    }
    data.extend([flags, 0, 0, 0, 0, 0]);
    let mut memory = descriptors.to_vec();
    memory.resize(AVAILABLE, 0);
    memory.extend([0; 2]);
    memory.extend(base.wrapping_add(ahead).to_le_bytes());
    memory.extend(heads.iter().flat_map(|head| head.to_le_bytes()));
    memory.resize(USED + 0x200, 0);
    data.extend(memory);
    data
}

/// Returns valid rings, and rings that break the specification, by name.
#[allow(dead_code, reason = "properties make their own")]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let chain = [descriptor(0x2000, 12, 1, 1), descriptor(0x3000, 1500, 0, 0)].concat();
    let looped = [descriptor(0x2000, 12, 1, 1), descriptor(0x3000, 1500, 1, 0)].concat();
    let table = [descriptor(0x10, 32, 4, 0), descriptor(0x2000, 12, 1, 1)].concat();
    let table = [table, descriptor(0x3000, 9000, 0, 0)].concat();
    let buffers: Vec<_> = (0..8).map(|n| descriptor(0x2000 + 0x800 * n, 0x800, 2, 0)).collect();
    let buffers = buffers.concat();
    let heads: Vec<u16> = (0..SIZE).collect();
    vec![
        ("frame", ring(SENDS, 0, &chain, &[0], 1)),
        ("frame_indices", ring(SENDS | INDICES, 65_535, &chain, &[0; 32], 2)),
        ("indirect", ring(SENDS, 0, &table, &[0], 1)),
        ("loop", ring(SENDS, 0, &looped, &[0], 1)),
        ("outside", ring(SENDS, 0, &descriptor(0xffff, 64, 0, 0), &[0], 1)),
        ("jump", ring(SENDS, 0, &chain, &[0], 33)),
        ("merged", ring(MERGES, 0, &buffers, &heads, 8)),
        ("unmerged", ring(INDICES, 0, &buffers, &heads, 8)),
        ("no_room", ring(MERGES | INDICES, 0, &buffers, &heads, 1)),
    ]
}
