//! The settings of a breaker.

use super::circuit_breaker::{CircuitBreaker, Config};
use super::count_window::CountWindow;
use super::error::BreakerError;
use super::event::BreakerEvent;
use super::history::{History, Learnt};
use super::open_time::OpenTime;
use super::thresholds::Thresholds;
use super::time_window::TimeWindow;
use super::window::Window;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use tollgate::{Clock, Outcome};

pub(super) type Classifier = Box<dyn Fn(Outcome, Duration) -> Outcome + Send + Sync>;
pub(super) type Listener = Box<dyn Fn(BreakerEvent) + Send + Sync>;

/// Makes a [`CircuitBreaker`]. Every setting has a default, and is checked by [`build`](Self::build).
///
/// | setting | default |
/// |---|---|
/// | window | the last 100 calls |
/// | minimum of calls | 20, or the window if that is smaller |
/// | failure rate | 0.5 |
/// | slow calls, consecutive failures | not judged |
/// | thresholds from history | no |
/// | probes | 10, overdue after 60 s |
/// | open time | 30 s, the same each time |
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Outcome};
/// # use tollgate_resilience::{BreakerState, CircuitBreaker, OpenTime};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let open_time = OpenTime::fixed(Duration::from_secs(5));
/// let builder = CircuitBreaker::builder().consecutive_failures(2).open_for(open_time).on(&clock);
/// let breaker = builder.build().unwrap();
/// for _ in 0..2 {
///     breaker.try_admit(1).unwrap().finish(Outcome::Failure);
/// }
/// assert_eq!(breaker.retry_after(), Some(Duration::from_secs(5)));
/// ```
#[must_use = "nothing is made before `build`"]
pub struct BreakerBuilder {
    window: Length,
    minimum: u64,
    failure_rate: Option<f64>,
    slow: Option<(Duration, f64)>,
    consecutive: Option<u64>,
    history: Option<History>,
    probes: u64,
    probe_timeout: Duration,
    open_time: OpenTime,
    classifier: Option<Classifier>,
    listener: Option<Listener>,
    seed: Option<u64>,
    waits: bool,
    clock: Option<Clock>,
}

#[derive(Clone, Copy, Debug)]
enum Length {
    Calls(usize),
    Time(Duration),
}

impl BreakerBuilder {
    /// The most probes of a half-open circuit.
    pub const MAX_PROBES: u64 = 1 << 20;
    /// The most calls of a [count window](Self::count_window).
    pub const MAX_COUNT_WINDOW: usize = CountWindow::MAX_SIZE;

    pub(super) fn new() -> Self {
        Self {
            window: Length::Calls(100),
            minimum: 20,
            failure_rate: Some(0.5),
            slow: None,
            consecutive: None,
            history: None,
            probes: 10,
            probe_timeout: Duration::from_secs(60),
            open_time: OpenTime::fixed(Duration::from_secs(30)),
            classifier: None,
            listener: None,
            seed: None,
            waits: false,
            clock: None,
        }
    }

    /// Evaluates the last `calls` results, exactly. 4 bytes each.
    pub fn count_window(mut self, calls: usize) -> Self {
        self.window = Length::Calls(calls);
        self
    }

    /// Evaluates the results of the last `time`. The window moves in tenths: it covers nine to ten of them.
    pub fn time_window(mut self, time: Duration) -> Self {
        self.window = Length::Time(time);
        self
    }

    /// The number of results below which rates conclude nothing. A smaller count window needs to be full.
    pub fn minimum_calls(mut self, calls: u64) -> Self {
        self.minimum = calls;
        self
    }

    /// Opens when this part of the results, above 0 to 1, are failures. Rounded down to a millionth.
    pub fn failure_rate(mut self, rate: f64) -> Self {
        self.failure_rate = Some(rate);
        self
    }

    /// Ignores failures in the window. Probes are still judged by them, at one half.
    pub fn any_failure_rate(mut self) -> Self {
        self.failure_rate = None;
        self
    }

    /// Opens when this part of the results, above 0 to 1, took longer than `after`, failed or not.
    pub fn slow_calls(mut self, after: Duration, rate: f64) -> Self {
        self.slow = Some((after, rate));
        self
    }

    /// Opens at `failures` failures without a success between them, after any number of calls.
    pub fn consecutive_failures(mut self, failures: u64) -> Self {
        self.consecutive = Some(failures);
        self
    }

    /// Lets thresholds follow the usual rates. An unusual part of failures, or of slow calls, opens the circuit, also
    /// below the rates that are set, which stay the maximum. Probes are judged by the same thresholds.
    ///
    /// ```
    /// # use tollgate::{Ask, LimiterExt, ManualClock, Outcome};
    /// # use tollgate_resilience::{BreakerState, CircuitBreaker, breaker::History};
    /// let clock = ManualClock::new();
    /// let builder = CircuitBreaker::builder().failure_rate(0.5).adaptive(History::new());
    /// let breaker = builder.on(&clock).build()?;
    /// let call = |outcome| breaker.try_admit(Ask::one()).unwrap().finish(outcome);
    /// for n in 0..1_001 {
    ///     call(if n % 50 == 49 { Outcome::Failure } else { Outcome::Success });
    /// }
    /// // 2 % is usual: of 100 calls, 6.2 % are three standard deviations more.
    /// assert_eq!(breaker.metrics().usual_failure_rate(), Some(0.02));
    /// assert_eq!(breaker.metrics().failure_threshold(), Some(0.062));
    /// for _ in 0..5 {
    ///     call(Outcome::Failure);
    /// }
    /// assert_eq!(breaker.state(), BreakerState::Open);
    /// # Ok::<(), tollgate_resilience::BreakerError>(())
    /// ```
    #[doc(alias = "thresholds from history")]
    pub fn adaptive(mut self, history: History) -> Self {
        self.history = Some(history);
        self
    }

    /// How many probes a half-open circuit lets through; it judges them by the same rates. A probe is asked for like
    /// any permit, and comes back when it is dropped, cancelled, or refused by a later leg.
    pub fn probes(mut self, probes: u64) -> Self {
        self.probes = probes;
        self
    }

    /// When too few probes are left and the latest went out this long ago, the circuit opens again: a resource that
    /// does not answer is not well. A probe that was [forgotten](tollgate::Permit::forget) counts as unanswered, too. The
    /// next call opens it, and a policy with waiters calls by itself.
    pub fn probe_timeout(mut self, timeout: Duration) -> Self {
        self.probe_timeout = timeout;
        self
    }

    /// A [`Policy`](tollgate::Policy) with this leg waits while the circuit is open, or its probes are out, instead of refusing at
    /// once with `CircuitOpen`.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Outcome, Policy, Reason};
    /// # use tollgate_resilience::{BreakerState, CircuitBreaker, OpenTime};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let open = |breaker: CircuitBreaker| {
    ///     for _ in 0..2 {
    ///         breaker.try_admit(1).unwrap().finish(Outcome::Failure);
    ///     }
    ///     assert_eq!(breaker.state(), BreakerState::Open);
    ///     Policy::new(breaker)
    /// };
    /// let builder = || {
    ///     CircuitBreaker::builder()
    ///         .count_window(2)
    ///         .minimum_calls(2)
    ///         .open_for(OpenTime::fixed(Duration::from_secs(2)))
    ///         .on(&clock)
    /// };
    /// let (refuses, waits) = (open(builder().build()?), open(builder().wait_while_open().build()?));
    /// clock.run(async {
    ///     let refused = refuses.admit(1).await.unwrap_err();
    ///     assert_eq!(refused.reason(), Reason::CircuitOpen);
    ///     assert_eq!(refused.retry_after(), Some(Duration::from_secs(2)));
    ///     assert!(waits.admit(1).await.is_ok());
    ///     assert_eq!(clock.elapsed(), Duration::from_secs(2));
    /// });
    /// # Ok::<(), tollgate_resilience::BreakerError>(())
    /// ```
    pub fn wait_while_open(mut self) -> Self {
        self.waits = true;
        self
    }

    /// How long it stays open.
    pub fn open_for(mut self, time: OpenTime) -> Self {
        self.open_time = time;
        self
    }

    /// Maps an outcome, given how long the work took. Unless set, failures and overload count as failures.
    /// [`Outcome::Ignored`] is not recorded, and a probe that ends so is free again.
    ///
    /// It runs in `finish`, outside every lock.
    pub fn classifier(mut self, classify: impl Fn(Outcome, Duration) -> Outcome + Send + Sync + 'static) -> Self {
        self.classifier = Some(Box::new(classify));
        self
    }

    /// Called after each change of state, outside every lock, by the thread that made the change.
    pub fn on_event(mut self, listener: impl Fn(BreakerEvent) + Send + Sync + 'static) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    /// The seed of the jitter; a random one unless set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The clock; the real one unless set.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Makes the breaker, closed.
    ///
    /// # Errors
    /// The first setting that is out of bounds, with the given value and the bounds.
    ///
    /// ```
    /// # use tollgate::{LimiterExt, ManualClock, Outcome};
    /// # use tollgate_resilience::{BreakerState, CircuitBreaker, OpenTime};
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicU32, Ordering};
    /// # use std::time::Duration;
    /// let (clock, changes) = (ManualClock::new(), Arc::new(AtomicU32::new(0)));
    /// let counted = Arc::clone(&changes);
    /// let breaker = CircuitBreaker::builder()
    ///     .time_window(Duration::from_secs(10))
    ///     .minimum_calls(2)
    ///     .any_failure_rate()
    ///     .slow_calls(Duration::from_millis(200), 0.5)
    ///     .probes(2)
    ///     .probe_timeout(Duration::from_secs(5))
    ///     .open_for(OpenTime::fixed(Duration::from_secs(1)).jitter(0.1))
    ///     .seed(7)
    ///     .classifier(|outcome, _took| outcome)
    ///     .on_event(move |_event| drop(counted.fetch_add(1, Ordering::Relaxed)))
    ///     .on(&clock)
    ///     .build()?;
    /// for _ in 0..2 {
    ///     let permit = breaker.try_admit(1).unwrap();
    ///     clock.advance(Duration::from_millis(300));
    ///     permit.finish(Outcome::Success); // Slow.
    /// }
    /// assert_eq!((breaker.state(), changes.load(Ordering::Relaxed)), (BreakerState::Open, 1));
    /// # Ok::<(), tollgate_resilience::BreakerError>(())
    /// ```
    pub fn build(self) -> Result<CircuitBreaker, BreakerError> {
        let minimum = Self::count("minimum calls", self.minimum, u64::MAX)?;
        let failure_rate = self.failure_rate.map(|rate| Self::rate("failure rate", rate));
        let slow_rate = self.slow.map(|(_, rate)| Self::rate("slow call rate", rate));
        let slow_after = self.slow.map(|(after, _)| Self::time("slow calls", after));
        let consecutive = self
            .consecutive
            .map(|failures| Self::count("consecutive failures", failures, u32::MAX.into()));
        let probes = Self::count("probes", self.probes, Self::MAX_PROBES)?;
        let probe_timeout = Self::time("probe time-out", self.probe_timeout)?;
        self.open_time.check()?;
        let (failure_rate, slow_rate) = (failure_rate.transpose()?, slow_rate.transpose()?);
        let (slow_after, consecutive) = (slow_after.transpose()?, consecutive.transpose()?);
        let (calls, time) = match self.window {
            Length::Calls(calls) => {
                let most = CountWindow::MAX_SIZE as u64;
                (Some(Self::count("count window", calls as u64, most)?), None)
            }
            Length::Time(time) => (None, Some(Self::time("time window", time)?)),
        };

        let minimum = minimum.min(calls.unwrap_or(u64::MAX));
        let chart = self.history.map(|history| history.check(minimum)).transpose()?;
        let learnt = chart.map(Learnt::new);

        // All settings are valid: only now is a clock read, which may take its time.
        let clock = self.clock.unwrap_or_default();
        let window = match time {
            None => Window::Count(CountWindow::new(calls.unwrap_or(1) as usize)),
            Some(time) => {
                let segment = clock.ticks_of(time).div_ceil(TimeWindow::SEGMENTS as u64).max(1);
                Window::Time(TimeWindow::new(segment, clock.now().ticks()))
            }
        };
        let thresholds = Thresholds {
            minimum,
            failure_rate,
            slow_rate,
        };
        let times_calls = slow_after.is_some() || self.classifier.is_some();
        let config = Config {
            times_calls,
            is_plain: self.classifier.is_none() && consecutive.is_none() && learnt.is_none(),
            thresholds,
            alarm: learnt
                .as_ref()
                .map_or(thresholds, |learnt| learnt.lowest(thresholds))
                .alarm(),
            learnt,
            slow_after: slow_after.map(|after| clock.ticks_of(after)),
            consecutive,
            open_time: self.open_time,
            classifier: self.classifier,
            listener: self.listener,
            waits: self.waits,
            seed: self.seed.unwrap_or_else(|| RandomState::new().hash_one(0)),
        };
        let overdue_after = clock.ticks_of(probe_timeout);
        Ok(CircuitBreaker::of(config, window, probes, overdue_after, clock))
    }
}

impl fmt::Debug for BreakerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerBuilder")
            .field("window", &self.window)
            .field("minimum", &self.minimum)
            .field("failure_rate", &self.failure_rate)
            .field("slow", &self.slow)
            .field("consecutive", &self.consecutive)
            .field("history", &self.history)
            .field("probes", &self.probes)
            .field("open_time", &self.open_time)
            .finish_non_exhaustive()
    }
}
