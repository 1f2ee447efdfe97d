//! What a run does after a block.

/// What is to be done after a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Go on with another block.
    Continue,
    /// Stop: every interval is narrow enough.
    GoalReached,
    /// Stop: the verdict on the change on trial can be told.
    Decided,
    /// Stop: it was the last block.
    LastBlock,
    /// Stop: at this noise many times the blocks allowed would be needed.
    OutOfReach,
}
