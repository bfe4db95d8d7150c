//! The probability that a request is dropped.

/// Client-side throttling: `accepted` of `asked` requests were accepted. Nothing is dropped while at most `1 /
/// accept_rate` times as many were asked as accepted. Google, *Site Reliability Engineering*, chapter 21 (2016):
/// `max(0, (asked - accepted / accept_rate) / (asked + 1))`, and at most `most`.
pub(crate) fn throttle_probability(asked: f64, accepted: f64, accept_rate: f64, most: f64) -> f64 {
    ((asked - accepted / accept_rate) / (asked + 1.0)).clamp(0.0, most)
}

#[cfg(test)]
mod tests {
    use super::throttle_probability;

    #[test]
    fn a_throttle_follows_its_table() {
        let rate = |asked: f64, accepted: f64| throttle_probability(asked, accepted, 0.9, 0.8);
        assert_eq!(rate(100.0, 95.0), 0.0);
        // A hundred and twenty were asked, and ninety accepted stand for a hundred.
        assert!((rate(120.0, 90.0) - 20.0 / 121.0).abs() < 1e-12);
        assert!((0.7..0.8).contains(&rate(200.0, 50.0)));
        assert_eq!((rate(1_000.0, 10.0), rate(0.0, 0.0)), (0.8, 0.0));
    }
}
