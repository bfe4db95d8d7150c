//! The latency beside its recent average, and whether more concurrency still brings more throughput.

use super::law::{LimitLaw, Sample};
use std::collections::VecDeque;

/// Estimates the queue as [`Vegas`](super::Vegas) does, but beside an average of about the last ten windows: the limit
/// follows the direction of latency, and forgets how short it once was.
///
/// An average forgets, so a lasting overload would count as normal. So while the limit is fully used, the law also
/// correlates throughput and latency of the last fifty windows with the number in flight. If more in flight meant less
/// throughput, or the same throughput and more latency, the limit goes down.
///
/// After the adaptive limiter of failsafe-go (2025).
///
/// ```
/// # use tollgate_resilience::adaptive::{LimitLaw, Sample, Trend};
/// # use std::time::Duration;
/// let mut law = Trend::new();
/// let at = |ms| Sample::new(Duration::from_millis(ms), 10);
/// assert_eq!(law.next(20.0, &at(1_000)), 21.0);
/// assert_eq!(law.next(20.0, &at(5_000)), 19.0);
/// ```
#[doc(alias = "failsafe-go")]
#[derive(Clone, Debug, PartialEq)]
pub struct Trend {
    age: f64,
    memory: usize,
    /// In seconds.
    average: f64,
    samples: f64,
    /// In flight, work per second, seconds.
    seen: VecDeque<[f64; 3]>,
}

/// The number of samples averaged before the average forgets; correlations need as many.
const ENOUGH: usize = 10;

impl Trend {
    /// An average over 10 windows, and correlations over 50.
    pub fn new() -> Self {
        Self {
            age: 10.0,
            memory: 50,
            average: 0.0,
            samples: 0.0,
            seen: VecDeque::new(),
        }
    }

    /// Over how many windows the latency is averaged; 0 counts as 1.
    #[must_use]
    pub fn average_over(mut self, windows: u32) -> Self {
        self.age = windows.max(1).into();
        self
    }

    /// Over how many windows the correlations go, 10 to 1,000, clamped.
    #[must_use]
    pub fn correlate_over(mut self, windows: usize) -> Self {
        self.memory = windows.clamp(ENOUGH, 1_000);
        self
    }

    /// Adds a latency to the average, and returns the average.
    fn add(&mut self, latency: f64) -> f64 {
        self.samples = (self.samples + 1.0).min(ENOUGH as f64 + 1.0);
        let weight = if self.samples <= ENOUGH as f64 {
            1.0 / self.samples
        } else {
            2.0 / (self.age + 1.0)
        };
        self.average += (latency - self.average) * weight;
        self.average
    }

    /// True if more in flight has brought only latency.
    fn is_saturated(&self) -> bool {
        if self.seen.len() < ENOUGH {
            return false;
        }
        let throughput = correlation(self.seen.iter().map(|seen| (seen[0], seen[1])));
        let latency = correlation(self.seen.iter().map(|seen| (seen[0], seen[2])));
        throughput < 0.0 || (latency > 0.5 && (throughput < 0.3 || self.variation() < 0.2))
    }

    /// The standard deviation of the throughput, by its mean.
    fn variation(&self) -> f64 {
        let n = self.seen.len() as f64;
        let mean = self.seen.iter().map(|seen| seen[1]).sum::<f64>() / n;
        let variance = self.seen.iter().map(|seen| (seen[1] - mean).powi(2)).sum::<f64>() / n;
        variance.sqrt() / mean
    }
}

impl Default for Trend {
    fn default() -> Self {
        Self::new()
    }
}

/// Pearson's; zero if one of the two does not vary.
fn correlation(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let n = pairs.clone().count() as f64;
    let (x, y) = pairs.clone().fold((0.0, 0.0), |(x, y), pair| (x + pair.0, y + pair.1));
    let (mean_x, mean_y) = (x / n, y / n);
    let (mut both, mut only_x, mut only_y) = (0.0, 0.0, 0.0);
    for (x, y) in pairs {
        both += (x - mean_x) * (y - mean_y);
        only_x += (x - mean_x).powi(2);
        only_y += (y - mean_y).powi(2);
    }
    let correlation: f64 = both / (only_x * only_y).sqrt();
    if correlation.is_finite() { correlation } else { 0.0 }
}

impl LimitLaw for Trend {
    fn next(&mut self, limit: f64, sample: &Sample) -> f64 {
        let step = limit.max(1.0).log10().floor().max(1.0);
        if sample.dropped {
            return limit - step;
        }
        let (latency, in_flight) = (sample.seconds(), sample.in_flight as f64);
        let average = self.add(latency);
        if self.seen.len() == self.memory {
            self.seen.pop_front();
        }
        self.seen.push_back([in_flight, in_flight / latency, latency]);
        let queue = (limit * (1.0 - average / latency)).ceil();
        let is_full = in_flight >= limit.floor();
        if queue > 6.0 * step || (is_full && self.is_saturated()) {
            limit - step
        } else if queue < 3.0 * step && !sample.is_app_limited(limit) {
            limit + step
        } else {
            limit
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn correlations_are_those_of_the_textbook() {
        let of = |pairs: &[(f64, f64)]| correlation(pairs.iter().copied());
        assert!((of(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]) - 1.0).abs() < 1e-12);
        assert!((of(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]) + 1.0).abs() < 1e-12);
        assert!((of(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0)]) - 0.5).abs() < 1e-12);
        assert_eq!(of(&[(1.0, 5.0), (2.0, 5.0)]), 0.0);
    }

    /// Given a resource that serves 10 at a time in 1 s each, when the limit is always used in full, then it does not
    /// run away. The average follows the latency meanwhile.
    #[test]
    fn a_limit_that_only_queues_is_not_raised() {
        let mut law = Trend::new();
        let (mut limit, mut peak, mut served) = (5.0, 0.0_f64, 0.0);
        for _ in 0..2_000 {
            let in_flight: f64 = f64::floor(limit);
            let latency = Duration::from_secs_f64((in_flight / 10.0).max(1.0));
            limit = law
                .next(limit, &Sample::new(latency, in_flight as u64))
                .clamp(1.0, 1_000.0);
            peak = peak.max(limit);
            served += in_flight.min(10.0);
        }
        assert!(peak < 40.0, "{peak}");
        assert!(served > 0.8 * 20_000.0, "{served}");
    }

    fn seen(rows: impl IntoIterator<Item = [f64; 3]>) -> Trend {
        Trend {
            seen: rows.into_iter().collect(),
            ..Trend::new()
        }
    }

    /// Means of 2 and 4 vary by a third of 3.
    #[test]
    fn the_variation_is_the_deviation_by_the_mean() {
        let trend = seen([2.0, 4.0, 2.0, 4.0].map(|throughput| [1.0, throughput, 1.0]));
        assert!((trend.variation() - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn more_in_flight_without_more_throughput_is_saturation() {
        let of = |throughput: fn(f64) -> f64, latency: fn(f64) -> f64, n| {
            seen((0..n).map(f64::from).map(|n| [n, throughput(n), latency(n)])).is_saturated()
        };
        let uneven = |n: f64| n * 7.0 % 5.0;
        // Less throughput, at any latency; but not by nine windows.
        assert!(of(|n| 100.0 - n, |_| 1.0, 10));
        assert!(!of(|n| 100.0 - n, |_| 1.0, 9));
        // The same throughput: by the latency, which has to follow closely.
        assert!(of(|_| 100.0, |n| n, 20));
        assert!(!of(|_| 100.0, |_| 1.0, 20));
        assert!(!of(|_| 100.0, uneven, 20));
        // Much more, and then less, with hardly a trend to more.
        assert!(of(|n| 1.0 + n * 7.0 % 5.0, |n| n, 20));
        // More throughput is reason enough to go on, unless the gain is negligible.
        assert!(!of(|n| 10.0 + 10.0 * n, |n| n, 20));
        assert!(of(|n| 1_000.0 + n, |n| n, 20));
        assert!(!of(|n| 1_000.0 + n, |_| 1.0, 20));
    }

    /// A mean at first; then a new value has the weight 2 / (age + 1).
    #[test]
    fn the_average_is_a_mean_before_it_forgets() {
        let mut law = Trend::new().average_over(3);
        assert_eq!([1.0, 3.0, 5.0].map(|latency| law.add(latency)), [1.0, 2.0, 3.0]);
        for _ in 3..10 {
            law.add(3.0);
        }
        assert!((law.average - 3.0).abs() < 1e-12);
        assert!((law.add(5.0) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn correlations_cover_the_windows_that_were_set() {
        let over = |windows| Trend::new().correlate_over(windows);
        assert!(over(50) == Trend::new() && over(20) != Trend::new());
        assert!(over(0) == over(10) && over(5_000) == over(1_000) && over(10) != over(11) && over(999) != over(1_000));
    }

    /// Given a limit that is always used in full, and latency that hardly grows, then throughput grows, and the limit
    /// with it.
    #[test]
    fn throughput_is_in_flight_divided_by_latency() {
        let mut law = Trend::new();
        for in_flight in 2..=40 {
            let sample = Sample::new(Duration::from_millis(1_000 + in_flight), in_flight);
            assert_eq!(law.next(in_flight as f64, &sample), (in_flight + 1) as f64);
        }
    }

    /// At a limit of 1,000 a step is 3: up below nine in the queue, down above eighteen.
    #[test]
    fn the_limit_moves_by_the_length_of_the_queue() {
        for (millis, next) in [
            (1_000, 1_003.0),
            (1_008, 1_003.0),
            (1_009, 1_000.0),
            (1_010, 1_000.0),
            (1_018, 1_000.0),
            (1_019, 997.0),
        ] {
            let mut law = Trend::new().average_over(1_000_000);
            for _ in 0..10 {
                law.next(1_000.0, &Sample::new(Duration::from_millis(1_000), 600));
            }
            assert_eq!(
                law.next(1_000.0, &Sample::new(Duration::from_millis(millis), 600)),
                next,
                "{millis}"
            );
        }
        let mut law = Trend::new();
        assert_eq!(
            law.next(1_000.0, &Sample::new(Duration::from_secs(1), 600).dropped()),
            997.0
        );
        assert_eq!(law.next(1_000.0, &Sample::new(Duration::from_secs(1), 499)), 1_000.0);
    }
}
