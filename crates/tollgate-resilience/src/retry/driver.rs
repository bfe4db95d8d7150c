//! The loop of attempts: admit, run, classify, reserve a retry, sleep.

use super::backoff::{Backoff, Delays};
use crate::rng::Rng;
use crate::shed::RetryBudget;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use tollgate::time::TaskTime;
use tollgate::{Ask, Clock, Limiter, LimiterExt, Outcome, Permit, Policy, Refusal};

/// Whether an attempt may be repeated, and when.
///
/// Only the caller knows whether that is safe: a request that was not idempotent may have had its effect, although its answer was
/// lost.
///
/// ```
/// # use tollgate::Outcome;
/// # use tollgate_resilience::retry::Repeat;
/// # use std::time::Duration;
/// struct Response { status: u16, retry_after: Option<Duration> }
/// let classify = |result: &Result<Response, std::io::Error>| match result {
///     Ok(Response { status: 429 | 503, retry_after }) => (Outcome::Overload, Repeat::hinted(*retry_after)),
///     Ok(Response { status: 500..=599, .. }) => (Outcome::Failure, Repeat::Backoff),
///     Ok(_) => (Outcome::Success, Repeat::Never),
///     Err(_) => (Outcome::Failure, Repeat::Backoff),
/// };
/// let hint = Some(Duration::from_secs(2));
/// let (_, repeat) = classify(&Ok(Response { status: 429, retry_after: hint }));
/// assert_eq!(repeat, Repeat::Hinted(Duration::from_secs(2)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repeat {
    /// It has succeeded, or failed for good, or must not be repeated.
    Never,
    /// After the next delay of the schedule.
    Backoff,
    /// After the delay that the server asks for, such as `Retry-After`. The `Retry` bounds and spreads it: see
    /// [`max_retry_after`](Retry::max_retry_after) and [`retry_after_jitter`](Retry::retry_after_jitter).
    Hinted(Duration),
    /// After exactly this delay, which the program chooses; zero is at once. A delay that a server chooses is
    /// [`Hinted`](Self::Hinted).
    After(Duration),
}

impl Repeat {
    /// After the hint of the server if there is one, and by the schedule otherwise.
    pub fn hinted(hint: Option<Duration>) -> Self {
        hint.map_or(Self::Backoff, Self::Hinted)
    }
}

/// Repeats work behind a policy: each attempt is admitted by itself, and its permit ends with it.
///
/// An attempt is repeated only if all of these hold:
/// - The classifier says that it [may be](Repeat).
/// - Fewer [`attempts`](Self::attempts) than the most have been made, 3 unless set.
/// - The delay ends before the [`deadline`](Self::deadline). The delay is that of the [`Backoff`], or the server's
///   [hint](#hints-of-servers).
/// - The [`RetryBudget`] has a retry left. Each first attempt that is admitted [deposits](RetryBudget::deposit) into it.
///
/// Otherwise the result of the attempt is the result. One `Retry` serves any number of tasks at once.
///
/// Delays and the deadline are by the clock of the policy. Where that is the real clock and a tokio runtime is running, they are by
/// the clock of the runtime, which a test can pause.
///
/// ```
/// # use tollgate::{ManualClock, Policy, Quota, TokenBucket};
/// # use tollgate_resilience::retry::{Backoff, Repeat, Retry};
/// # use tollgate_resilience::shed::RetryBudget;
/// # use std::cell::Cell;
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let policy = Policy::new(TokenBucket::new(Quota::per_second(100)).on(&clock));
/// let budget = Arc::new(RetryBudget::new(0.1, 10)?);
/// let retry = Retry::new(Backoff::default()).deadline(Duration::from_secs(30)).budget(&budget);
///
/// let attempts = Cell::new(0);
/// let work = async || {
///     attempts.set(attempts.get() + 1);
///     if attempts.get() < 3 { Err("connection reset") } else { Ok("hello") }
/// };
/// let result = clock.run(retry.run(&policy, 1, work, |_error| Repeat::Backoff));
/// assert_eq!((result.unwrap(), attempts.get(), budget.available()), ("hello", 3, 8));
/// # Ok::<(), tollgate_resilience::shed::ShedError>(())
/// ```
///
/// # Hints of servers
/// A server names a delay, as by `Retry-After`, and the classifier passes it on as [`Repeat::hinted`]. `Retry` bounds and spreads it:
/// - It waits at least for the delay of its [`Backoff`]: a hint of zero does not make it retry without a delay.
/// - A hint counts up to [`max_retry_after`](Self::max_retry_after), one hour unless set.
/// - It waits up to a tenth longer than the hint, by chance ([`retry_after_jitter`](Self::retry_after_jitter)). Callers that were given
///   the same hint do not come back at the same instant, and none of them before it.
#[must_use = "nothing is repeated before `run`"]
pub struct Retry {
    backoff: Backoff,
    attempts: u32,
    deadline: Option<Duration>,
    budget: Option<Arc<RetryBudget>>,
    max_retry_after: Duration,
    retry_after_jitter: f64,
    /// The state of the generator of seeds, one for each sequence of attempts.
    seeds: AtomicU64,
}

impl Retry {
    /// At most 3 attempts, without a deadline and without a budget. Hints of servers count up to one hour, with a jitter of a tenth.
    pub fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            attempts: 3,
            deadline: None,
            budget: None,
            max_retry_after: Duration::from_secs(3_600),
            retry_after_jitter: 0.1,
            seeds: AtomicU64::new(RandomState::new().hash_one(0)),
        }
    }

    /// The most attempts, with the first. Zero counts as 1.
    ///
    /// ```
    /// # use tollgate_resilience::retry::{Backoff, Repeat, Retry};
    /// # use tollgate::{ManualClock, Outcome, Policy, Semaphore};
    /// # use std::cell::Cell;
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(1)).on(&clock).build()?;
    /// let (retry, made) = (Retry::new(Backoff::default()).attempts(2).seed(7), Cell::new(0));
    /// let work = async || {
    ///     made.set(made.get() + 1);
    ///     Err::<(), _>("busy")
    /// };
    /// let classify = |_: &Result<(), _>| (Outcome::Overload, Repeat::Backoff);
    /// assert!(clock.run(retry.run_classified(&policy, 1, work, classify)).is_err());
    /// assert_eq!(made.get(), 2);
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn attempts(mut self, most: u32) -> Self {
        self.attempts = most.max(1);
        self
    }

    /// The time that all attempts have, with their waits for admission and the delays between them. An attempt that runs then is
    /// dropped.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Some(after);
        self
    }

    /// The budget that all retries are taken from. Share one among all callers of a resource.
    pub fn budget(mut self, budget: &Arc<RetryBudget>) -> Self {
        self.budget = Some(Arc::clone(budget));
        self
    }

    /// Sets the longest delay that a server's hint can cause, before the jitter; one hour unless set. A longer hint counts as this
    /// one. A maximum below the delay of the [`Backoff`] gives way to that delay.
    ///
    /// ```
    /// # use tollgate_resilience::retry::{Backoff, Repeat, Retry};
    /// # use tollgate::{ManualClock, Policy, Semaphore};
    /// # use std::time::Duration;
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(1)).on(&clock).build()?;
    /// let minute = Duration::from_secs(60);
    /// let retry = Retry::new(Backoff::default()).attempts(2).max_retry_after(minute).retry_after_jitter(0.0);
    /// let day = Some(Duration::from_secs(86_400));
    /// let busy = async || Err::<(), _>("busy");
    /// assert!(clock.run(retry.run(&policy, 1, busy, |_| Repeat::hinted(day))).is_err());
    /// assert_eq!(clock.elapsed(), minute);
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn max_retry_after(mut self, most: Duration) -> Self {
        self.max_retry_after = most;
        self
    }

    /// Sets the spread of delays that servers ask for, as a part of the delay; 0.1 unless set. At 0.1, a hint of 2 s becomes 2 s to
    /// 2.2 s. Below 0, and not a number, count as 0; above 1 counts as 1.
    pub fn retry_after_jitter(mut self, part: f64) -> Self {
        self.retry_after_jitter = if part > 0.0 { part.min(1.0) } else { 0.0 };
        self
    }

    /// Makes the jitter deterministic: for tests and simulations.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seeds = AtomicU64::new(seed);
        self
    }

    /// Runs `work` until it succeeds, or may not be repeated. `may_repeat` is asked about each error. The permit of an attempt
    /// ends as [`Outcome::Success`] or [`Outcome::Failure`].
    ///
    /// # Errors
    /// As [`run_classified`](Self::run_classified).
    ///
    /// # Cancel safety
    /// As [`run_classified`](Self::run_classified).
    pub fn run<L, T, E, W>(
        &self,
        policy: &Policy<L>,
        ask: impl Into<Ask>,
        work: impl FnMut() -> W,
        mut may_repeat: impl FnMut(&E) -> Repeat,
    ) -> impl Future<Output = Result<T, RetryError<E>>>
    where
        L: Limiter + 'static,
        W: Future<Output = Result<T, E>>,
    {
        self.run_classified(policy, ask, work, move |result| match result {
            Ok(_) => (Outcome::Success, Repeat::Never),
            Err(error) => (Outcome::Failure, may_repeat(error)),
        })
    }

    /// [`run`](Self::run), where `classify` maps each result, also one that is `Ok`, to the outcome of its permit and to whether
    /// it may be repeated. A response with the status 429 is [`Outcome::Overload`], from which an adaptive limit learns.
    ///
    /// # Errors
    /// - [`RetryError::Refused`]: the policy has refused the first attempt.
    /// - [`RetryError::Failed`]: the error of the last attempt that has ended.
    /// - [`RetryError::TimedOut`]: the deadline passed during the first attempt.
    ///
    /// If a later attempt is refused, or is dropped at the deadline, the result of the attempt before is the result.
    ///
    /// # Panics
    /// Where `work` or `classify` does. The permit ends as [`Outcome::Ignored`]: a panic says nothing about the resource.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, or drops the work, whose permit ends as [`Outcome::Ignored`]. A retry
    /// that was reserved and has not been admitted goes back to the budget.
    pub async fn run_classified<L, T, E, W>(
        &self,
        policy: &Policy<L>,
        ask: impl Into<Ask>,
        mut work: impl FnMut() -> W,
        mut classify: impl FnMut(&Result<T, E>) -> (Outcome, Repeat),
    ) -> Result<T, RetryError<E>>
    where
        L: Limiter + 'static,
        W: Future<Output = Result<T, E>>,
    {
        let (ask, time) = (ask.into(), TaskTime::start(policy.clock()));
        let left = || self.deadline.map(|deadline| deadline.saturating_sub(time.elapsed()));
        let mut delays = self.delays();
        // The result of the attempt before, and the retry that was reserved after it.
        let mut before: Option<Result<T, E>> = None;
        let mut reserved: Option<Reserved<'_>> = None;
        let mut attempts = 0;
        loop {
            let admitted = match left() {
                Some(left) => policy.admit_timeout(ask, left).await,
                None => policy.admit(ask).await,
            };
            let permit = match admitted {
                Ok(permit) => permit,
                Err(refusal) => return before.map_or(Err(RetryError::Refused(refusal)), ended),
            };
            attempts += 1;
            match (reserved.take(), &self.budget) {
                (Some(retry), _) => retry.spend(),
                (None, Some(budget)) if attempts == 1 => budget.deposit(),
                _ => {}
            }
            let Some(result) = within(policy.clock(), left(), work()).await else {
                return before.map_or(Err(RetryError::TimedOut), ended);
            };
            let (outcome, repeat) = classify(&result);
            permit.finish(outcome);
            let delay = match repeat {
                Repeat::Never => return ended(result),
                Repeat::Backoff => delays.next().unwrap_or_default(),
                Repeat::Hinted(hint) => {
                    let hint = hint.min(self.max_retry_after);
                    delays.at_least(hint, self.retry_after_jitter)
                }
                Repeat::After(delay) => delay,
            };
            if attempts >= self.attempts || left().is_some_and(|left| delay >= left) {
                return ended(result);
            }
            if let Some(budget) = &self.budget {
                match (**budget).try_admit(1) {
                    Ok(retry) => reserved = Some(Reserved(Some(retry))),
                    Err(_) => return ended(result),
                }
            }
            before = Some(result);
            policy.clock().sleep(delay).await;
        }
    }

    fn delays(&self) -> Delays {
        // Relaxed: only distinct numbers are needed.
        let nth = self.seeds.fetch_add(1, Ordering::Relaxed);
        self.backoff.delays(Rng::new(nth).draw())
    }
}

/// A retry that is taken from the budget, and goes back to it unless it is made.
struct Reserved<'a>(Option<Permit<&'a RetryBudget>>);

impl Reserved<'_> {
    fn spend(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(retry) = self.0.take() {
            retry.cancel();
        }
    }
}

fn ended<T, E>(result: Result<T, E>) -> Result<T, RetryError<E>> {
    result.map_err(RetryError::Failed)
}

/// The output of `work`, if it ends within `left`.
async fn within<W: Future>(clock: &Clock, left: Option<Duration>, work: W) -> Option<W::Output> {
    let mut work = pin!(work);
    let mut deadline = left.map(|left| clock.sleep(left));
    poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        match &mut deadline {
            Some(deadline) => pin!(deadline).poll(cx).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("backoff", &self.backoff)
            .field("attempts", &self.attempts)
            .field("deadline", &self.deadline)
            .field("budget", &self.budget)
            .field("max_retry_after", &self.max_retry_after)
            .field("retry_after_jitter", &self.retry_after_jitter)
            .finish_non_exhaustive()
    }
}

/// Why repeated work has given nothing. The operator `?` turns it into a boxed error.
///
/// ```
/// # use tollgate::{ManualClock, Policy, Semaphore};
/// # use tollgate_resilience::retry::{Backoff, Repeat, Retry, RetryError};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let policy = Policy::builder().on(&clock).limit(Semaphore::new(1)).build()?;
/// let retry = Retry::new(Backoff::default()).deadline(Duration::from_secs(5));
/// let never = || std::future::pending::<Result<(), &str>>();
/// let result = clock.run(retry.run(&policy, 1, never, |_| Repeat::Backoff));
/// assert!(matches!(result, Err(RetryError::TimedOut)));
/// assert_eq!(clock.elapsed(), Duration::from_secs(5));
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum RetryError<E> {
    /// The first attempt was not admitted, and has not begun.
    Refused(Refusal),
    /// The last attempt that has ended has failed.
    Failed(E),
    /// The deadline passed during the first attempt.
    TimedOut,
}

impl<E: fmt::Display> fmt::Display for RetryError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(error) => error.fmt(f),
            Self::TimedOut => f.write_str(TIMED_OUT),
        }
    }
}

const TIMED_OUT: &str = "the deadline passed during the first attempt";

macro_rules! into_boxed_error {
    ($($error:ty),*) => {$(
        impl<E: Into<Box<$error>>> From<RetryError<E>> for Box<$error> {
            fn from(error: RetryError<E>) -> Self {
                match error {
                    RetryError::Refused(refusal) => refusal.into(),
                    RetryError::Failed(error) => error.into(),
                    RetryError::TimedOut => TIMED_OUT.into(),
                }
            }
        }
    )*};
}
into_boxed_error!(dyn Error, dyn Error + Send + Sync);
