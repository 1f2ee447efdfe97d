//! Statistics: ratios, intervals, stop rules, trends, block order.
//!
//! Pure functions: no I/O, no clock, no hidden state; the same input gives the same output on every
//! machine. The ratio to the block's own baseline is assumed to have independent noise in each
//! block. Common effects (drift, other load, a slower clock) cancel in that ratio. Effects that the
//! baseline does not share do not cancel; [`trend`] detects them.
//!
//! - [`ratio_interval`]: the median ratio and its confidence interval.
//! - [`StopRule`]: the condition for ending a run.
//! - [`proven`]: the proof that the intervals of a change on trial give.
//! - [`Background`]: values that stand out from usual ones.
//! - [`SequentialPlan`]: interim analyses that keep the coverage when stopping early.
//! - [`trend`]: a drift within a sequence of samples (Mann-Kendall, Theil-Sen).
//! - [`mann_whitney`], [`ratio_of_medians`]: comparison of two runs.
//! - [`separation_p_value`]: the case that one side never worked and the other always.
//! - [`median`], [`percentile`], [`relative_mad`]: descriptions of samples.
//! - [`block_order`]: the random order of a block's cells.

mod background;
mod block;
mod bootstrap;
mod decision;
mod describe;
mod interval;
mod mann_whitney;
mod proof;
mod separation;
mod sequential;
mod sign;
mod stop_rule;
mod student;
mod trend;
mod two_sample;

pub use background::{Background, WINDOW};
pub use block::block_order;
pub use decision::Decision;
pub use describe::{median, percentile, relative_mad};
pub use interval::{StatsError, ratio_interval, relative_half_width};
pub use mann_whitney::{MannWhitney, mann_whitney, smallest_p_value};
pub use proof::{FELT, Proven, proven};
pub use separation::separation_p_value;
pub use sequential::{InterimAnalysis, SequentialPlan};
pub use stop_rule::{Outlook, Series, StopRule};
pub use trend::{Trend, trend};
pub use two_sample::ratio_of_medians;
