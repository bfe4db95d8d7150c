//! The probability that a request is dropped.

/// Client-side throttling: `accepted` of `asked` requests were accepted. Nothing is dropped while at most `1 /
/// accept_rate` times as many were asked as accepted. Google, *Site Reliability Engineering*, chapter 21 (2016):
/// `max(0, (asked - accepted / accept_rate) / (asked + 1))`, and at most `most`.
pub(crate) fn throttle_probability(asked: f64, accepted: f64, accept_rate: f64, most: f64) -> f64 {
    ((asked - accepted / accept_rate) / (asked + 1.0)).clamp(0.0, most)
}

/// Early rejection: 0 below `from` queued requests, 1 from `most` on, and linear in between. The straight part of
/// random early detection (S. Floyd and V. Jacobson, 1993).
pub(crate) fn early_rejection_probability(queued: usize, from: usize, most: usize) -> f64 {
    if queued < from {
        0.0
    } else if queued >= most {
        1.0
    } else {
        (queued - from) as f64 / (most - from) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::{early_rejection_probability, throttle_probability};

    #[test]
    fn early_rejection_follows_its_table() {
        for (queued, from, most, rate) in [
            (5, 10, 20, 0.0),
            (60, 60, 100, 0.0),
            (80, 60, 100, 0.5),
            (100, 60, 100, 1.0),
            (11, 10, 20, 0.1),
            (3, 3, 3, 1.0),
            (2, 3, 3, 0.0),
        ] {
            assert_eq!(
                early_rejection_probability(queued, from, most),
                rate,
                "{queued} of {from} to {most}"
            );
        }
    }

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
