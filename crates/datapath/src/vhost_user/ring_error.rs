//! Violations of the ring specification.

use super::SIZE_MAX;

/// A violation of the ring specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The size is invalid.
    #[error("its size is {0}, expected a power of two up to {SIZE_MAX}")]
    Size(u16),
    /// A part is not aligned.
    #[error("its {part} are at {at:#x}, expected a multiple of {wanted}")]
    Alignment {
        part: &'static str,
        at: u64,
        /// Required alignment, bytes.
        wanted: u64,
    },
    /// A part or a buffer is outside the guest's memory.
    #[error("its {part} at {at:#x} are outside the guest's memory")]
    Outside { part: &'static str, at: u64 },
    /// A part that the guest must have written lies in memory that nobody has touched, and this
    /// process may take no more memory.
    #[error(
        "its {part} at {at:#x} are in memory that the guest has never used, and this program's \
         memory limit leaves no room for it"
    )]
    Untouched { part: &'static str, at: u64 },
    /// More entries were offered than the ring has.
    #[error("its available index advanced from {from} to {to}, expected at most {size} entries")]
    Jump {
        /// The next entry.
        from: u16,
        /// The available index that was read.
        to: u16,
        /// Number of entries of the ring.
        size: u16,
    },
    /// A descriptor index exceeds its table.
    #[error("descriptor {index} exceeds its table of {count}")]
    Index {
        index: u16,
        /// Number of descriptors in the table.
        count: u32,
    },
    /// A chain is too long, or a loop.
    #[error("a chain has more than {0} descriptors: it is a loop, or too long")]
    Loop(usize),
    /// An indirect table is invalid.
    #[error("an indirect table of {length} bytes: {problem}")]
    Indirect {
        /// Length of the table, bytes.
        length: u32,
        problem: &'static str,
    },
    /// A buffer is for the other direction.
    #[error("a buffer is {got}, expected one that is {wanted}")]
    Direction {
        /// Actual direction.
        got: &'static str,
        /// Expected direction.
        wanted: &'static str,
    },
    /// The buffers of a chain have no room.
    #[error("a chain has only empty buffers")]
    Empty,
}
