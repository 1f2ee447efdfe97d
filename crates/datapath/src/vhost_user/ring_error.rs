//! What a ring can do wrong.

use super::SIZE_MAX;

/// How the ring breaks the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// Its size cannot be.
    #[error("its size is {0}, expected a power of two up to {SIZE_MAX}")]
    Size(u16),
    /// A part is not aligned.
    #[error("its {part} are at {at:#x}, expected a multiple of {wanted}")]
    Alignment {
        /// Which part.
        part: &'static str,
        /// Where it is.
        at: u64,
        /// Of what its address has to be a multiple.
        wanted: u64,
    },
    /// A part or a buffer is outside of the guest's memory.
    #[error("its {part} at {at:#x} are not in the guest's memory")]
    Outside {
        /// Which part.
        part: &'static str,
        /// Where it is.
        at: u64,
    },
    /// More was offered than there are entries.
    #[error("its index went from {from} to {to}, expected at most {size} more")]
    Jump {
        /// The entry that was to be next.
        from: u16,
        /// The index that was read.
        to: u16,
        /// Entries of the ring.
        size: u16,
    },
    /// A descriptor that is not in its table.
    #[error("descriptor {index} is not in its table of {count}")]
    Index {
        /// Number of the descriptor.
        index: u16,
        /// Descriptors of the table.
        count: u32,
    },
    /// More descriptors than the table has, or too many.
    #[error("a chain has more than {0} descriptors: it is a loop, or too long")]
    Loop(usize),
    /// An indirect table that cannot be.
    #[error("an indirect table of {length} bytes: {problem}")]
    Indirect {
        /// Bytes of the table.
        length: u32,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A buffer for the other direction.
    #[error("a buffer is {got}, expected one that is {wanted}")]
    Direction {
        /// What it is.
        got: &'static str,
        /// What it should be.
        wanted: &'static str,
    },
    /// Buffers without room.
    #[error("a chain has buffers of no bytes")]
    Empty,
}
