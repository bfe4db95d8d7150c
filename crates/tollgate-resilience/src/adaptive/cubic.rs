//! Growth by the time since the latest drop.

use super::law::{LimitLaw, Sample};

/// Lowers the limit to seven tenths when a request is dropped, and returns to the limit of the drop along a cubic: fast at
/// first, hardly at all near that limit, and faster again beyond it.
///
/// `t` seconds after a drop at the limit `w`, the limit is `scale x (t - k)^3 + w`, where `k` is the time at which it is back at
/// `w`: 4.2 s for 100, 9.1 s for 1,000. So it spends most of the time close to what the server allows, and takes little
/// longer to find ten times as much. After each window it is set to the value in the middle of the next. Before the first
/// drop it doubles every second.
///
/// At a few units per period the limit swings by whole units. Choose a longer period, as `1200/min` for `20/s`, and a scale
/// that is as many times higher.
///
/// Windows in which less than half of the limit was used do not count as time. The law is that of RFC 9438 without its fast
/// convergence and its Reno-friendly region, with the numbers of the adaptive mode of the AWS SDKs.
///
/// ```
/// # use tollgate_resilience::adaptive::{Cubic, LimitLaw, Sample};
/// # use std::time::Duration;
/// let mut law = Cubic::new();
/// let second = Sample::new(Duration::from_millis(20), 100).over(Duration::from_secs(1));
/// assert_eq!(law.next(50.0, &second), 100.0);
/// assert_eq!(law.next(100.0, &second.dropped()), 70.0);
/// let mut limit = 70.0;
/// let rounded = [(); 6].map(|()| {
///     limit = law.next(limit, &second);
///     limit.round()
/// });
/// assert_eq!(rounded, [92.0, 98.0, 100.0, 100.0, 101.0, 105.0]);
/// ```
#[doc(alias = "RFC9438")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cubic {
    backoff: f64,
    scale: f64,
    since_drop: Option<Curve>,
}

/// The growth since a drop.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Curve {
    /// The limit at the drop.
    dropped_at: f64,
    /// The seconds after which the limit is back there.
    back_after: f64,
    /// The seconds since the drop.
    age: f64,
}

impl Cubic {
    /// A factor of 0.7, and a scale of 0.4 per cubic second.
    pub fn new() -> Self {
        Self {
            backoff: 0.7,
            scale: 0.4,
            since_drop: None,
        }
    }

    /// The factor of a limit at which a request was dropped: 0.1 to 0.99, clamped.
    #[must_use]
    pub fn backoff(mut self, factor: f64) -> Self {
        self.backoff = factor.clamp(0.1, 0.99);
        self
    }

    /// The scale of the cubic, in units of the limit per cubic second: 10^-6 to 10^6, clamped. Eight times the scale halves
    /// the time to the limit of the drop.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = scale.clamp(1e-6, 1e6);
        self
    }
}

impl Default for Cubic {
    fn default() -> Self {
        Self::new()
    }
}

impl LimitLaw for Cubic {
    fn next(&mut self, limit: f64, sample: &Sample) -> f64 {
        let elapsed = sample.elapsed.as_secs_f64();
        if sample.dropped {
            self.since_drop = Some(Curve {
                dropped_at: limit,
                back_after: (limit * (1.0 - self.backoff) / self.scale).cbrt(),
                age: 0.0,
            });
            return limit * self.backoff;
        }
        if sample.is_app_limited(limit) {
            return limit;
        }
        let Some(curve) = &mut self.since_drop else {
            return limit * elapsed.min(1.0).exp2();
        };
        curve.age += elapsed;
        // In the middle of the next window, if that is as long.
        let since_back = curve.age + elapsed / 2.0 - curve.back_after;
        let wanted = curve.dropped_at + self.scale * since_back.powi(3);
        // As in the RFC: never down without a drop, and up by half at most.
        wanted.max(limit).min(limit * 1.5)
    }
}
