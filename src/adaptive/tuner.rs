//! A window of samples, the law, and the limit that came out of it last. Plain data, behind a lock of its owner.

use crate::algo::adaptive::{Headroom, LimitLaw, Sample, Sampler};
use crate::time::{Clock, Instant};
use std::time::Duration;

pub(super) struct Tuner {
    pub(super) sampler: Sampler,
    /// Empty while it is asked: users' code runs under no lock of ours. A window that ends meanwhile is asked about next.
    pub(super) law: Option<Box<dyn LimitLaw>>,
    /// Not rounded.
    pub(super) limit: f64,
    pub(super) pinned: Option<usize>,
    /// When it learnt last.
    pub(super) learnt: Option<Instant>,
}

/// What was learnt counts for so long without work, or for a hundred windows if that is more.
const MEMORY: Duration = Duration::from_secs(60);

/// What the builder sets. Times are in ticks.
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
    /// `limit` within the bounds. A law that has lost its way, and says that it is no number, changes nothing.
    fn bound(&self, old: f64, limit: f64, in_flight: u64) -> f64 {
        let limit = if limit.is_finite() { limit } else { old };
        let limit = match self.headroom {
            // Only what has grown is held back: to use little is no reason to shrink.
            Some(headroom) if limit > old => limit.min(headroom.limit(in_flight).max(old)),
            _ => limit,
        };
        limit.max(self.floor as f64).min(self.ceiling as f64)
    }
}

impl Tuner {
    /// True when it is as new at `now`: what it has learnt says nothing any more.
    pub(super) fn is_pristine(&self, settings: &Settings, clock: &Clock, now: Instant) -> bool {
        let counts = clock.ticks_of(MEMORY).max(settings.window.saturating_mul(100));
        self.pinned.is_none() && self.learnt.is_none_or(|at| now.ticks_since(at) > counts)
    }

    /// What the limit should be.
    pub(super) fn target(&self) -> usize {
        self.pinned.unwrap_or(self.limit as usize)
    }

    /// Work took `latency` ticks. When that ends a window: what the law is asked, and the law, which is to come back.
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

    /// What the law is asked, if a window has ended and the law is here.
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

    /// The law has said `next` to a question with `in_flight`.
    pub(super) fn answer(&mut self, settings: &Settings, next: f64, in_flight: u64) {
        self.limit = settings.bound(self.limit, next, in_flight);
    }
}

/// What a law is asked at the end of a window.
pub(super) struct Question {
    pub(super) law: Box<dyn LimitLaw>,
    pub(super) limit: f64,
    pub(super) sample: Sample,
    pub(super) in_flight: u64,
}
