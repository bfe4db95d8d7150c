//! The window of samples, the law, and its latest limit. Plain data, behind a lock of its owner.

use super::law::{LimitLaw, Sample};
use crate::rng::Rng;
use std::time::Duration;
use tollgate::{Clock, Instant};

pub(super) struct Tuner {
    pub(super) sampler: Sampler,
    /// Empty while it is asked: user code runs under no lock of ours. A window that ends meanwhile is asked about next.
    pub(super) law: Option<Box<dyn LimitLaw>>,
    /// Not rounded.
    pub(super) limit: f64,
    pub(super) pinned: Option<usize>,
    /// When it last learnt.
    pub(super) learnt: Option<Instant>,
    /// The windows with a drop so far, and the answers that raised or lowered the limit.
    pub(super) drops: u64,
    pub(super) raised: u64,
    pub(super) lowered: u64,
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
    /// The period of a rate.
    pub(super) period: Option<u64>,
}

/// Work that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) started: Instant,
    pub(super) now: Instant,
    pub(super) dropped: bool,
    /// The permits in use, or the units that it took of a rate.
    pub(super) used: u64,
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
        self.pinned.is_none() && self.learnt.is_none_or(|at| between(at, now) > counts)
    }

    /// The limit to apply.
    pub(super) fn target(&self) -> usize {
        self.pinned.unwrap_or(self.limit as usize)
    }

    /// Adds work. If that ends a window, returns the question and the law, which has to come back.
    pub(super) fn learn(&mut self, settings: &Settings, clock: &Clock, ended: Ended) -> Option<Question> {
        self.learnt = self.learnt.max(Some(ended.now));
        self.sampler.add(ended, settings);
        self.question(settings, clock)
    }

    /// The next question, if a window has ended and the law is here.
    pub(super) fn question(&mut self, settings: &Settings, clock: &Clock) -> Option<Question> {
        let now = self.learnt?;
        self.law.as_ref()?;
        let drawn = self.sampler.close(now, settings)?;
        let time = |ticks| clock.between(Instant::ZERO, Instant::from_ticks(ticks));
        let mut sample = Sample::new(time(drawn.latency), drawn.in_flight).over(time(drawn.elapsed));
        sample.dropped = drawn.dropped;
        self.drops += u64::from(drawn.dropped);
        Some(Question {
            law: self.law.take()?,
            limit: self.limit,
            sample,
        })
    }

    /// Applies the law's answer `next` to a question with `in_flight`.
    pub(super) fn answer(&mut self, settings: &Settings, next: f64, in_flight: u64) {
        let limit = settings.bound(self.limit, next, in_flight);
        self.raised += u64::from(limit > self.limit);
        self.lowered += u64::from(limit < self.limit);
        self.limit = limit;
    }
}

/// The ticks from one instant to another, zero if that is earlier.
fn between(from: Instant, to: Instant) -> u64 {
    to.ticks().saturating_sub(from.ticks())
}

/// The instant `ticks` later, saturating.
pub(super) fn later(from: Instant, ticks: u64) -> Instant {
    Instant::from_ticks(from.ticks().saturating_add(ticks))
}

/// A question to a law, at the end of a window.
pub(super) struct Question {
    pub(super) law: Box<dyn LimitLaw>,
    pub(super) limit: f64,
    pub(super) sample: Sample,
}

/// A window of latencies, for one percentile. It keeps at most `most`; of more, a uniform sample (J. Vitter's algorithm
/// R, 1985).
///
/// The window of a rate ends at its first drop, so that the limit is lowered at once. The server goes on refusing until the
/// lower rate has reached it, and until its own window ends. So the drop of a request that was admitted within a window after
/// that does not lower the limit again. It restarts the window: the limit is raised only after a whole window without a drop.
#[derive(Clone, Debug)]
pub(super) struct Sampler {
    kept: Vec<u64>,
    most: usize,
    seen: u64,
    draws: Rng,
    /// The most in flight, or the units that ended.
    used: u64,
    dropped: bool,
    /// When the window began.
    since: Instant,
    /// Drops of a rate's requests that were admitted earlier do not lower it.
    recovered: Option<Instant>,
}

/// The result of a window. Times are in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drawn {
    pub(super) latency: u64,
    pub(super) in_flight: u64,
    pub(super) dropped: bool,
    pub(super) elapsed: u64,
}

impl Sampler {
    pub(super) fn new(most: usize, now: Instant) -> Self {
        Self {
            kept: Vec::with_capacity(most),
            most,
            seen: 0,
            draws: Rng::new(0),
            used: 0,
            dropped: false,
            since: now,
            recovered: None,
        }
    }

    /// Adds one latency.
    pub(super) fn add(&mut self, ended: Ended, settings: &Settings) {
        let latency = between(ended.started, ended.now);
        self.seen += 1;
        if settings.period.is_some() {
            let recovered = self.recovered.is_none_or(|at| ended.started >= at);
            if ended.dropped && !recovered {
                return self.restart(ended.now);
            }
            self.used = self.used.saturating_add(ended.used);
            self.dropped |= ended.dropped;
        } else {
            self.used = self.used.max(ended.used);
            self.dropped |= ended.dropped;
        }
        if self.kept.len() < self.most {
            self.kept.push(latency);
        } else {
            let place = (self.draws.draw() % self.seen) as usize;
            if let Some(kept) = self.kept.get_mut(place) {
                *kept = latency;
            }
        }
    }

    /// The percentile of the window, if it has its length and its number of latencies; then the next begins.
    pub(super) fn close(&mut self, now: Instant, settings: &Settings) -> Option<Drawn> {
        let elapsed = between(self.since, now);
        let is_lowered = self.dropped && settings.period.is_some();
        if !is_lowered && (elapsed < settings.window || self.seen < settings.least.max(1)) {
            return None;
        }
        let last = self.kept.len().checked_sub(1)?;
        let rank = ((settings.percentile / 100.0 * last as f64).round() as usize).min(last);
        let (_, latency, _) = self.kept.select_nth_unstable(rank);
        let drawn = Drawn {
            latency: *latency,
            in_flight: match settings.period {
                None => self.used,
                Some(period) => (self.used as f64 * period as f64 / elapsed as f64) as u64,
            },
            dropped: self.dropped,
            elapsed,
        };
        if drawn.dropped {
            self.recovered = Some(later(now, settings.window));
        }
        self.restart(now);
        Some(drawn)
    }

    fn restart(&mut self, now: Instant) {
        self.kept.clear();
        (self.seen, self.used, self.dropped, self.since) = (0, 0, false, now);
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

    fn settings(window: u64, least: u64, period: Option<u64>) -> Settings {
        Settings {
            floor: 1,
            ceiling: 1_000,
            window,
            least,
            percentile: 90.0,
            headroom: None,
            period,
        }
    }

    fn ended(started: u64, now: u64, used: u64, dropped: bool) -> Ended {
        let [started, now] = [started, now].map(Instant::from_ticks);
        Ended {
            started,
            now,
            dropped,
            used,
        }
    }

    #[test]
    fn a_window_ends_when_it_is_long_enough_and_full_enough() {
        let mut sampler = Sampler::new(100, Instant::ZERO);
        let settings = settings(100, 10, None);
        for latency in (1..=9).rev() {
            sampler.add(ended(0, latency, latency, false), &settings);
        }
        assert_eq!(sampler.close(Instant::from_ticks(100), &settings), None);
        sampler.add(ended(0, 10, 3, true), &settings);
        assert_eq!(sampler.close(Instant::from_ticks(99), &settings), None);
        let drawn = Drawn {
            latency: 9,
            in_flight: 9,
            dropped: true,
            elapsed: 100,
        };
        assert_eq!(sampler.close(Instant::from_ticks(100), &settings), Some(drawn));
        assert_eq!(
            sampler.close(Instant::from_ticks(500), &settings),
            None,
            "the next one is empty"
        );
    }

    /// Given a rate per 1,000 ticks, then its window of 100 ends at the first drop. Of requests admitted within a window after
    /// that, drops start the window anew.
    #[test]
    fn the_window_of_a_rate_ends_at_its_first_drop() {
        let settings = settings(100, 2, Some(1_000));
        let mut sampler = Sampler::new(100, Instant::ZERO);
        let mut drawn = |started, now, dropped| {
            sampler.add(ended(started, now, 3, dropped), &settings);
            let drawn = sampler.close(Instant::from_ticks(now), &settings)?;
            Some((drawn.in_flight, drawn.dropped, drawn.elapsed))
        };
        assert_eq!(drawn(0, 40, false), None);
        assert_eq!(drawn(0, 50, true), Some((120, true, 50)));
        for started in [49, 100, 149] {
            assert_eq!(drawn(started, 160, true), None);
        }
        assert_eq!(drawn(150, 259, false), None);
        assert_eq!(drawn(150, 260, false), Some((60, false, 100)));
        assert_eq!(drawn(150, 261, true), Some((3_000, true, 1)), "at once again");
    }

    #[test]
    fn more_latencies_than_it_keeps_are_sampled_uniformly() {
        let (mut sampler, settings) = (Sampler::new(256, Instant::ZERO), settings(1, 1, None));
        for latency in 0..100_000 {
            sampler.add(ended(0, latency, 1, false), &settings);
        }
        let settings = Settings {
            percentile: 50.0,
            ..settings
        };
        let median = sampler.close(Instant::from_ticks(1), &settings).unwrap().latency;
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
