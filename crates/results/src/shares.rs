//! Shares of the flows of one load.

use serde::{Deserialize, Serialize};

use crate::stats::median;

/// Rates of the flows of a load with several, in the workload's rate unit (bits/s for streams over
/// TCP; datagrams, transactions or connections per second otherwise).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FlowShares {
    /// Rate of the slowest flow; 0 if a flow got nothing.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub least: f64,
    /// Median rate.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub median: f64,
    /// Rate of the fastest flow.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub most: f64,
    /// Jain's fairness index, (Σx)² ÷ (n Σx²): 1 if all flows are equally fast, 1/n if one flow has
    /// everything.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0, "maximum" = 1)))]
    pub jain: f64,
}

impl FlowShares {
    /// Summarises the rates of flows. `None` for a single flow, or if nothing arrived.
    pub fn of(rates: &[f64]) -> Option<FlowShares> {
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        // One flow shares with no other, and flows without traffic have no share.
        if rates.len() < 2 || squares <= 0.0 {
            return None;
        }
        Some(FlowShares {
            least: rates.iter().copied().fold(f64::INFINITY, f64::min),
            median: median(rates)?,
            most: rates.iter().copied().fold(0.0, f64::max),
            // Rounding can exceed 1.
            jain: (sum * sum / (rates.len() as f64 * squares)).min(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_for_equal_flows_and_a_share_for_a_starved_rest() {
        let equal = FlowShares::of(&[3.0; 128]).unwrap();
        assert_eq!((equal.least, equal.median, equal.most), (3.0, 3.0, 3.0));
        assert!((equal.jain - 1.0).abs() < 1e-12);
        let starved = FlowShares::of(&[8.0, 0.0, 0.0, 0.0]).unwrap();
        assert_eq!((starved.least, starved.median, starved.most), (0.0, 0.0, 8.0));
        assert!((starved.jain - 0.25).abs() < 1e-12);
        assert_eq!(FlowShares::of(&[1.0]), None);
        assert_eq!(FlowShares::of(&[0.0, 0.0]), None);
    }
}
