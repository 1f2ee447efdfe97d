//! Decision after a block.

/// Decision after a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Continue with another block.
    Continue,
    /// Stop: every interval is narrow enough.
    GoalReached,
    /// Stop: the verdict on the change on trial is certain.
    Decided,
    /// Stop: it was the last block.
    LastBlock,
    /// Stop: at this noise many times the allowed blocks would be needed.
    OutOfReach,
}
