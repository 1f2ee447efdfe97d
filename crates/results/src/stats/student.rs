//! Quantiles of Student's t distribution.

/// Returns the value below which the absolute value of a t variable with `freedom` degrees of
/// freedom stays with probability `confidence` (0 < confidence < 1).
pub(super) fn two_sided_quantile(confidence: f64, freedom: u32) -> f64 {
    let tail = 1.0 - confidence;
    // The tail decreases monotonically in t: bracket it, then bisect.
    let mut high = 1.0;
    while two_sided_tail(high, freedom) > tail && high < 1e150 {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if two_sided_tail(middle, freedom) > tail {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Returns P(|T| > t), in closed form for integer degrees of freedom: Abramowitz and Stegun,
/// Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
fn two_sided_tail(t: f64, freedom: u32) -> f64 {
    let n = f64::from(freedom);
    let angle = (t / n.sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    let squared = cos * cos;
    let inside = if freedom % 2 == 1 {
        let mut sum = 0.0;
        let mut term = cos;
        let mut step = 1;
        while step < freedom - 1 {
            sum += term;
            term *= squared * f64::from(step + 1) / f64::from(step + 2);
            step += 2;
        }
        2.0 / std::f64::consts::PI * (angle + sin * sum)
    } else {
        let mut sum = 0.0;
        let mut term = 1.0;
        let mut step = 0;
        while step < freedom {
            sum += term;
            term *= squared * f64::from(step + 1) / f64::from(step + 2);
            step += 2;
        }
        sin * sum
    };
    1.0 - inside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_printed_tables() {
        for (confidence, freedom, expected) in [
            (0.95, 1, 12.706),
            (0.95, 2, 4.303),
            (0.95, 3, 3.182),
            (0.95, 4, 2.776),
            (0.99, 1, 63.657),
            (0.99, 4, 4.604),
            (0.99, 5, 4.032),
            (0.99, 6, 3.707),
            (0.999, 6, 5.959),
            (0.95, 30, 2.042),
        ] {
            let got = two_sided_quantile(confidence, freedom);
            assert!(
                (got - expected).abs() < 6e-4,
                "{confidence} with {freedom} degrees of freedom: {got}, table {expected}"
            );
        }
    }
}
