//! Statistics: ratios, intervals, when to stop, trends, block order.
//!
//! Pure: no I/O, no clock, no hidden state; the same input gives the same
//! output on every machine. Noise is assumed to be independent from block to
//! block once the ratio to the block's own baseline is taken. What both share
//! (drift, another load, a slower clock) cancels in that ratio; what the
//! baseline does not share does not, and [`trend`] is there to find it.
//!
//! - [`ratio_interval`]: the median ratio and its confidence interval.
//! - [`StopRule`]: when a run stops.
//! - [`proven`]: what the intervals of a change on trial prove.
//! - [`Background`]: what stands out from what is usual.
//! - [`SequentialPlan`]: when to look, so that stopping early keeps the coverage.
//! - [`trend`]: a drift within a sequence of samples (Mann-Kendall, Theil-Sen).
//! - [`mann_whitney`], [`ratio_of_medians`]: two runs against each other.
//! - [`separation_p_value`]: one side never worked, the other always.
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
pub use sequential::{Look, SequentialPlan};
pub use stop_rule::{Outlook, Series, StopRule};
pub use trend::{Trend, trend};
pub use two_sample::ratio_of_medians;
