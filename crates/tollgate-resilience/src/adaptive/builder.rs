//! The settings of an adaptive limit.

use super::error::AdaptiveError;
use super::gradient2::Gradient2;
use super::law::LimitLaw;
use super::limiter::Adaptive;
use super::resizable::Resizable;
use super::tuner::{Headroom, Sampler, Settings, Tuner};
use std::fmt;
use std::time::Duration;
use tollgate::Clock;

/// Makes an [`Adaptive`] limit over a limiter. Every setting has a default, and is checked by [`build`](Self::build).
///
/// | setting | default |
/// |---|---|
/// | law | [`Gradient2`] |
/// | floor, ceiling | 1, 1,000 |
/// | window | 1 s and at least 10 samples, of which the median of at most 256 counts |
/// | headroom | none |
///
/// ```
/// # use tollgate_resilience::adaptive::{Adaptive, AdaptiveError, Aimd};
/// # use tollgate::Semaphore;
/// let adaptive = Adaptive::builder(Semaphore::new(20)).law(Aimd::new()).bounds(5, 100).build().unwrap();
/// assert_eq!(adaptive.limit(), 20);
/// let error = Adaptive::builder(Semaphore::new(20)).bounds(9, 3).build().unwrap_err();
/// assert_eq!(error, AdaptiveError::Bounds { floor: 9, ceiling: 3 });
/// ```
#[must_use = "nothing is made before `build`"]
pub struct AdaptiveBuilder<L> {
    limiter: L,
    law: Box<dyn LimitLaw>,
    floor: usize,
    ceiling: usize,
    window: Duration,
    least: u64,
    most: usize,
    percentile: f64,
    headroom: Option<Headroom>,
    clock: Option<Clock>,
}

impl<L: Resizable> AdaptiveBuilder<L> {
    pub(super) fn new(limiter: L) -> Self {
        Self {
            limiter,
            law: Box::new(Gradient2::new()),
            floor: 1,
            ceiling: 1_000,
            window: Duration::from_secs(1),
            least: 10,
            most: 256,
            percentile: 50.0,
            headroom: None,
            clock: None,
        }
    }

    /// The law. It must not block. It runs under no lock, so it may read this limiter; work that ends meanwhile counts
    /// in the next window.
    pub fn law(mut self, law: impl LimitLaw + 'static) -> Self {
        self.law = Box::new(law);
        self
    }

    /// The limit is never below `floor` nor above `ceiling`.
    pub fn bounds(mut self, floor: usize, ceiling: usize) -> Self {
        (self.floor, self.ceiling) = (floor, ceiling);
        self
    }

    /// The law is asked once per `window`, and only after `samples` requests have finished since. For a rate, also at a drop
    /// that is not the second one in a window.
    ///
    /// ```
    /// # use tollgate_resilience::adaptive::{Adaptive, Gradient2};
    /// # use tollgate::{ManualClock, Semaphore};
    /// # use std::time::Duration;
    /// let gate = Adaptive::builder(Semaphore::new(20))
    ///     .law(Gradient2::new().smoothing(0.2).tolerance(1.5).queue(4))
    ///     .bounds(4, 200)
    ///     .window(Duration::from_secs(1), 10)
    ///     .percentile(90.0)
    ///     .headroom(1.5, 0.1, 1.1)
    ///     .keep(500)
    ///     .on(&ManualClock::new())
    ///     .build();
    /// assert_eq!(gate.map(|gate| gate.limit()).ok(), Some(20));
    /// ```
    pub fn window(mut self, window: Duration, samples: u64) -> Self {
        (self.window, self.least) = (window, samples);
        self
    }

    /// The percentile of a window's latencies that the law sees, 0 to 100.
    pub fn percentile(mut self, percentile: f64) -> Self {
        self.percentile = percentile;
        self
    }

    /// How many latencies of a window are kept, 8 bytes each; of more, a uniform sample.
    pub fn keep(mut self, samples: usize) -> Self {
        self.most = samples;
        self
    }

    /// Bounds the growth of the limit. With `n` in flight it is at most `factor - decay x log10(n)` times `n`, or
    /// `floor` times `n`, or `n + 1`, whichever is most. Unused capacity is not known to be there. It also keeps a law
    /// from running ahead of a queue that fills slowly.
    pub fn headroom(mut self, factor: f64, decay: f64, floor: f64) -> Self {
        self.headroom = Some(Headroom { factor, decay, floor });
        self
    }

    /// The clock; the real one unless set.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Makes the limit. It starts at the limiter's own limit, or at the bound nearest to it.
    ///
    /// # Errors
    /// The first setting that is out of bounds. The limiter is left as it was.
    pub fn build(self) -> Result<Adaptive<L>, AdaptiveError> {
        let (floor, ceiling) = (self.floor, self.ceiling);
        if floor == 0 || floor > ceiling || ceiling as u64 > 1 << 32 {
            return Err(AdaptiveError::Bounds { floor, ceiling });
        }
        if !(0.0..=100.0).contains(&self.percentile) {
            return Err(AdaptiveError::Percentile { given: self.percentile });
        }
        if self.window > Duration::from_secs(365 * 86_400) {
            return Err(AdaptiveError::Window { given: self.window });
        }
        if self.most == 0 || self.most > 65_536 {
            return Err(AdaptiveError::Samples { given: self.most });
        }
        if let Some(Headroom { factor, decay, floor }) = self.headroom {
            if !(factor.is_finite() && decay.is_finite() && factor >= floor && floor >= 1.0 && decay >= 0.0) {
                return Err(AdaptiveError::Headroom { factor, decay, floor });
            }
        }
        let clock = self.clock.unwrap_or_default();
        let settings = Settings {
            floor,
            ceiling,
            window: clock.ticks_of(self.window),
            least: self.least,
            percentile: self.percentile,
            headroom: self.headroom,
            period: self.limiter.period().map(|period| clock.ticks_of(period)),
        };
        let tuner = Tuner {
            sampler: Sampler::new(self.most, clock.now()),
            law: Some(self.law),
            limit: self.limiter.limit().clamp(floor, ceiling) as f64,
            pinned: None,
            learnt: None,
            drops: 0,
            raised: 0,
            lowered: 0,
        };
        Ok(Adaptive::of(self.limiter, tuner, settings, clock))
    }
}

impl<L> fmt::Debug for AdaptiveBuilder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveBuilder")
            .field("floor", &self.floor)
            .field("ceiling", &self.ceiling)
            .field("window", &self.window)
            .field("percentile", &self.percentile)
            .finish_non_exhaustive()
    }
}
