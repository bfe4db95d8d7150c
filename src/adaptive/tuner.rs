//! The window of samples, the law, and its latest limit. Plain data, behind a lock of its owner.

use super::law::{LimitLaw, Sample};
use crate::rng::Rng;
use crate::time::{Clock, Instant};
use std::time::Duration;

pub(super) struct Tuner {
    pub(super) sampler: Sampler,
    /// Empty while it is asked: user code runs under no lock of ours. A window that ends meanwhile is asked about next.
    pub(super) law: Option<Box<dyn LimitLaw>>,
    /// Not rounded.
    pub(super) limit: f64,
    pub(super) pinned: Option<usize>,
    /// When it last learnt.
    pub(super) learnt: Option<Instant>,
}

/// How long a learnt limit counts without work, or for a hundred windows if that is more.
const MEMORY: Duration = Duration::from_secs(60);

/// The settings of the builder. Times are in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) floor: usize,
    pub(super) ceiling: usize,
    pub(super) window: u64,
    pub(super) least: u64,
    pub(super) percentile: f64,
    pub(super) headroom: Option<Headroom>,
}

impl Settings {
    /// `limit` within the bounds. A result of the law that is not finite changes nothing.
    fn bound(&self, old: f64, limit: f64, in_flight: u64) -> f64 {
        let limit = if limit.is_finite() { limit } else { old };
        let limit = match self.headroom {
            // Only growth is held back: low use is no reason to shrink.
            Some(headroom) if limit > old => limit.min(headroom.limit(in_flight).max(old)),
            _ => limit,
        };
        limit.max(self.floor as f64).min(self.ceiling as f64)
    }
}

impl Tuner {
    /// True if it is as good as new at `now`: the learnt limit counts no more.
    pub(super) fn is_pristine(&self, settings: &Settings, clock: &Clock, now: Instant) -> bool {
        let counts = clock.ticks_of(MEMORY).max(settings.window.saturating_mul(100));
        self.pinned.is_none() && self.learnt.is_none_or(|at| now.ticks_since(at) > counts)
    }

    /// The limit to apply.
    pub(super) fn target(&self) -> usize {
        self.pinned.unwrap_or(self.limit as usize)
    }

    /// Adds work of `latency` ticks. If that ends a window, returns the question and the law, which has to come back.
    pub(super) fn learn(
        &mut self,
        settings: &Settings,
        clock: &Clock,
        now: Instant,
        latency: u64,
        in_flight: u64,
        dropped: bool,
    ) -> Option<Question> {
        self.learnt = self.learnt.max(Some(now));
        self.sampler.add(latency, in_flight, dropped);
        self.question(settings, clock)
    }

    /// The next question, if a window has ended and the law is here.
    pub(super) fn question(&mut self, settings: &Settings, clock: &Clock) -> Option<Question> {
        let now = self.learnt?;
        self.law.as_ref()?;
        let (latency, in_flight, dropped) =
            self.sampler
                .close(now.ticks(), settings.window, settings.least, settings.percentile)?;
        let mut sample = Sample::new(clock.between(Instant::ZERO, Instant::from_ticks(latency)), in_flight);
        sample.dropped = dropped;
        Some(Question {
            law: self.law.take()?,
            limit: self.limit,
            sample,
            in_flight,
        })
    }

    /// Applies the law's answer `next` to a question with `in_flight`.
    pub(super) fn answer(&mut self, settings: &Settings, next: f64, in_flight: u64) {
        self.limit = settings.bound(self.limit, next, in_flight);
    }
}

/// A question to a law, at the end of a window.
pub(super) struct Question {
    pub(super) law: Box<dyn LimitLaw>,
    pub(super) limit: f64,
    pub(super) sample: Sample,
    pub(super) in_flight: u64,
}

/// A window of latencies, for one percentile. It keeps at most `most`; of more, a uniform sample (J. Vitter's algorithm
/// R, 1985).
#[derive(Clone, Debug)]
pub(super) struct Sampler {
    kept: Vec<u64>,
    most: usize,
    seen: u64,
    draws: Rng,
    in_flight: u64,
    dropped: bool,
    /// When the window began.
    since: u64,
}

/// The result of a window: a latency in ticks, the most in flight, and whether a request was dropped.
pub(super) type Drawn = (u64, u64, bool);

impl Sampler {
    pub(super) fn new(most: usize, now: u64) -> Self {
        Self {
            kept: Vec::with_capacity(most),
            most,
            seen: 0,
            draws: Rng::new(0),
            in_flight: 0,
            dropped: false,
            since: now,
        }
    }

    /// Adds one latency.
    pub(super) fn add(&mut self, latency: u64, in_flight: u64, dropped: bool) {
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

    /// The `percentile` (0 to 100) of the window, if it has lasted `window` ticks and has `least` latencies; then the
    /// next begins.
    pub(super) fn close(&mut self, now: u64, window: u64, least: u64, percentile: f64) -> Option<Drawn> {
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

/// The headroom of a limit above its use.
///
/// With `n` in flight the limit is at most `factor - decay * log10(n)` times `n`, and at least `floor` times. It is at
/// least `n + 1`, or a small limit could not grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Headroom {
    pub(super) factor: f64,
    pub(super) decay: f64,
    pub(super) floor: f64,
}

impl Headroom {
    pub(super) fn limit(&self, in_flight: u64) -> f64 {
        let used = in_flight.max(1) as f64;
        let most = used * (self.factor - self.decay * used.log10()).max(self.floor);
        most.max(used + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn more_latencies_than_it_keeps_are_sampled_uniformly() {
        let mut sampler = Sampler::new(256, 0);
        for latency in 0..100_000 {
            sampler.add(latency, 1, false);
        }
        let (median, ..) = sampler.close(1, 1, 1, 50.0).unwrap();
        assert!((40_000..60_000).contains(&median), "{median}");
    }

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
