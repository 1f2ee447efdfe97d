//! Test for two sides of which one always failed and the other never.

/// Returns the two-sided probability that chance alone puts all `failed` failures on one side and
/// all `worked` successes on the other. It is Fisher's exact test of a table whose other two counts
/// are 0: `2 / C(failed + worked, failed)`. 1 if a side is empty.
pub fn separation_p_value(failed: usize, worked: usize) -> f64 {
    // C(n, k) as a product of fractions, which stays an integer after each factor.
    let orders = (1..=failed).fold(1.0, |orders, k| orders * (worked + k) as f64 / k as f64);
    (2.0 / orders).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_two_over_the_number_of_orders() {
        for (failed, worked, orders) in [(1, 1, 2.0), (3, 3, 20.0), (6, 3, 84.0), (8, 4, 495.0)] {
            let p = separation_p_value(failed, worked);
            assert!((p - 2.0 / orders).abs() < 1e-12, "{failed} {worked}: {p}");
        }
        assert!((separation_p_value(0, 9) - 1.0).abs() < 1e-12);
        assert!((separation_p_value(9, 0) - 1.0).abs() < 1e-12);
    }
}
