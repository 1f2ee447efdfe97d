//! Medians, percentiles and spread. Input order does not matter.

/// Returns the median of `values`; the mean of the two middle values if their number is even.
/// `None` for no values or a NaN.
pub fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 0.5)
}

/// Returns the `q`-quantile (0 ≤ q ≤ 1), linear between the neighbouring order statistics (type 7
/// of Hyndman and Fan, "Sample quantiles in statistical packages", 1996: the rule of R and NumPy).
///
/// `None` if `values` is empty or contains a NaN, or `q` is outside 0..=1.
pub fn percentile(values: &[f64], q: f64) -> Option<f64> {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) || !(0.0..=1.0).contains(&q) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(of_sorted(&sorted, q))
}

/// Returns the median absolute deviation ÷ |median|, a measure of spread. Not scaled to a standard
/// deviation (× 1.4826 for normal noise).
///
/// `None` without a median, or if it is 0.
pub fn relative_mad(values: &[f64]) -> Option<f64> {
    let centre = median(values)?;
    // A share of 0 is undefined.
    if centre == 0.0 || !centre.is_finite() {
        return None;
    }
    let deviations: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    Some(median(&deviations)? / centre.abs())
}

/// Returns the `q`-quantile of sorted values; `sorted` is not empty, `q` in 0..=1.
pub(super) fn of_sorted(sorted: &[f64], q: f64) -> f64 {
    let place = q * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = place.ceil() as usize;
    let share = place - place.floor();
    // Return an order statistic exactly, also at infinity, where `∞ − ∞` is NaN.
    if share == 0.0 || sorted[below] == sorted[above] {
        return sorted[below];
    }
    sorted[below] * (1.0 - share) + sorted[above] * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_or_the_mean_of_the_two_middle_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
        assert_eq!(median(&[1.0, f64::INFINITY, f64::INFINITY]), Some(f64::INFINITY));
    }

    #[test]
    fn percentile_is_linear_between_order_statistics() {
        // numpy.percentile([1, 2, 4, 8], [0, 25, 50, 90, 100])
        let values = [8.0, 1.0, 4.0, 2.0];
        for (q, expected) in [(0.0, 1.0), (0.25, 1.75), (0.5, 3.0), (0.9, 6.8), (1.0, 8.0)] {
            let got = percentile(&values, q).unwrap();
            assert!((got - expected).abs() < 1e-12, "q {q}: {got}, expected {expected}");
        }
        assert_eq!(percentile(&values, 1.01), None);
        assert_eq!(percentile(&values, f64::NAN), None);
    }

    #[test]
    fn relative_mad_ignores_a_minority_of_outliers() {
        let got = relative_mad(&[9.0, 10.0, 11.0, 10.0, 1e6]).unwrap();
        assert!((got - 0.1).abs() < 1e-12, "{got}");
        assert_eq!(relative_mad(&[0.0, 0.0]), None);
    }
}
