//! The probability that a request is rejected before the queue is full.

/// Early rejection: 0 below `from` queued requests, 1 from `most` on, and linear in between. The straight part of
/// random early detection (S. Floyd and V. Jacobson, 1993).
pub(super) fn rejection_probability(queued: usize, from: usize, most: usize) -> f64 {
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
    use super::rejection_probability;

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
                rejection_probability(queued, from, most),
                rate,
                "{queued} of {from} to {most}"
            );
        }
    }
}
