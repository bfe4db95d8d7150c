//! A window of latencies, of which one percentile is wanted. It keeps so many at most; of more, an even choice (J.
//! Vitter's algorithm R, 1985).

use crate::algo::chance::Draws;

#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    kept: Vec<u64>,
    most: usize,
    seen: u64,
    draws: Draws,
    in_flight: u64,
    dropped: bool,
    /// When the window began.
    since: u64,
}

/// What came out of a window: a latency in ticks, the most in flight, and whether something was dropped.
pub(crate) type Drawn = (u64, u64, bool);

impl Sampler {
    pub(crate) fn new(most: usize, now: u64) -> Self {
        Self {
            kept: Vec::with_capacity(most),
            most,
            seen: 0,
            draws: Draws::new(0),
            in_flight: 0,
            dropped: false,
            since: now,
        }
    }

    /// One that took so long.
    pub(crate) fn add(&mut self, latency: u64, in_flight: u64, dropped: bool) {
        self.seen += 1;
        self.in_flight = self.in_flight.max(in_flight);
        self.dropped |= dropped;
        if self.kept.len() < self.most {
            self.kept.push(latency);
        } else {
            let place = (self.draws.draw() % self.seen) as usize;
            if let Some(kept) = self.kept.get_mut(place) {
                *kept = latency;
            }
        }
    }

    /// The `percentile` (0 to 100) of the window, if it has lasted `window` ticks and has `least` latencies; the next one
    /// begins then.
    pub(crate) fn close(&mut self, now: u64, window: u64, least: u64, percentile: f64) -> Option<Drawn> {
        if now.saturating_sub(self.since) < window || self.seen < least.max(1) {
            return None;
        }
        let last = self.kept.len() - 1;
        let rank = ((percentile / 100.0 * last as f64).round() as usize).min(last);
        let (_, latency, _) = self.kept.select_nth_unstable(rank);
        let drawn = (*latency, self.in_flight, self.dropped);
        self.kept.clear();
        (self.seen, self.in_flight, self.dropped, self.since) = (0, 0, false, now);
        Some(drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::Sampler;

    #[test]
    fn a_window_ends_when_it_is_long_enough_and_full_enough() {
        let mut sampler = Sampler::new(100, 0);
        for latency in (1..=9).rev() {
            sampler.add(latency, latency, false);
        }
        assert_eq!(sampler.close(100, 100, 10, 50.0), None);
        sampler.add(10, 3, true);
        assert_eq!(sampler.close(99, 100, 10, 50.0), None);
        assert_eq!(sampler.close(100, 100, 10, 90.0), Some((9, 9, true)));
        assert_eq!(sampler.close(500, 100, 1, 90.0), None, "the next one is empty");
    }

    #[test]
    fn more_than_it_keeps_are_chosen_from_evenly() {
        let mut sampler = Sampler::new(256, 0);
        for latency in 0..100_000 {
            sampler.add(latency, 1, false);
        }
        let (median, ..) = sampler.close(1, 1, 1, 50.0).unwrap();
        assert!((40_000..60_000).contains(&median), "{median}");
    }
}
