//! A median and its confidence interval.

use serde::{Deserialize, Serialize};

/// A median and its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Median of the samples' values or ratios.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub median: f64,
    /// Lower end of the interval.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub low: f64,
    /// Upper end of the interval.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 0)))]
    pub high: f64,
    /// Minimum probability with which such intervals cover the true median, 0..1.
    #[cfg_attr(feature = "schema", schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1)))]
    pub confidence: f64,
    /// Number of ratios it was computed from.
    #[cfg_attr(feature = "schema", schemars(extend("minimum" = 1)))]
    pub samples: usize,
}

impl Interval {
    /// Returns the interval of ratios, inverted if less is better, so that above 1 is always
    /// better.
    pub fn worth(self, less_is_better: bool) -> Interval {
        // 0 has no inverse.
        if !less_is_better || self.low <= 0.0 {
            return self;
        }
        let Interval { median, low, high, .. } = self;
        Interval { median: 1.0 / median, low: 1.0 / high, high: 1.0 / low, ..self }
    }
}
