//! How far a limit may be above what is really used.

/// The limit is at most `factor - decay * log10(in flight)` times what is in flight, and at least `floor` times; and at
/// least one more than that, or a small limit could not grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Headroom {
    pub(crate) factor: f64,
    pub(crate) decay: f64,
    pub(crate) floor: f64,
}

impl Headroom {
    pub(crate) fn limit(&self, in_flight: u64) -> f64 {
        let used = in_flight.max(1) as f64;
        let most = used * (self.factor - self.decay * used.log10()).max(self.floor);
        if seeded!("headroom_keeps_small") {
            most
        } else {
            most.max(used + 1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Headroom;

    #[test]
    fn the_more_is_used_the_less_headroom_there_is() {
        let of = |decay| Headroom {
            factor: 5.0,
            decay,
            floor: 1.2,
        };
        for (decay, in_flight, limit) in [
            (1.0, 10, 40),
            (1.0, 100, 300),
            (1.0, 1_000, 2_000),
            (2.0, 10_000, 12_000),
        ] {
            assert_eq!(of(decay).limit(in_flight).round() as u64, limit);
        }
    }
}
