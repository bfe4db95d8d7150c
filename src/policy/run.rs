//! Work behind a policy in one call, with a fallback.

use super::policy::Policy;
use crate::core::ask::Ask;
use crate::core::limiter::{Limiter, Outcome};
use crate::core::refusal::Refusal;
use std::error::Error;
use std::fmt;

impl<L: Limiter + 'static> Policy<L> {
    /// Admits, runs `work`, and ends the permit by the result: [`Outcome::Success`] or [`Outcome::Failure`]. For other outcomes
    /// see [`run_classified`](Policy::run_classified). `work` is not called before it is admitted. [`Run::or_else`] gives a
    /// fallback for a refusal.
    ///
    /// # Errors
    /// [`RunError::Refused`] as [`admit`](Policy::admit), else [`RunError::Failed`] with the error of the work.
    ///
    /// # Panics
    /// Where the work does. Its permit ends as [`Outcome::Ignored`]: a panic says nothing about the resource.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, or drops the work: its permit ends as [`Outcome::Ignored`].
    ///
    /// ```
    /// # use tollgate::{Ask, ManualClock, Policy, RunError, Semaphore};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().limit(Semaphore::new(1)).max_queue(0).on(&clock).build()?;
    /// clock.run(async {
    ///     let fresh = policy.run(Ask::one(), || async { Ok::<_, ()>("fresh") }).await;
    ///     assert!(matches!(fresh, Ok("fresh")));
    ///
    ///     let _held = policy.admit(Ask::one()).await.unwrap();
    ///     let either = policy
    ///         .run(Ask::one(), || async { Ok::<_, ()>("fresh") })
    ///         .or_else(|refusal| async move {
    ///             assert_eq!(refusal.leg(), "semaphore");
    ///             Ok("from the cache")
    ///         })
    ///         .await;
    ///     assert_eq!(either, Ok("from the cache"));
    /// });
    /// # Ok::<(), tollgate::PolicyError>(())
    /// ```
    pub fn run<T, E, W>(
        &self,
        ask: impl Into<Ask>,
        work: impl FnOnce() -> W,
    ) -> Run<impl Future<Output = Result<T, RunError<E>>>>
    where
        W: Future<Output = Result<T, E>>,
    {
        self.run_classified(ask, work, |result| match result {
            Ok(_) => Outcome::Success,
            Err(_) => Outcome::Failure,
        })
    }

    /// [`run`](Policy::run), where `classify` maps a result to an outcome: a time-out to [`Outcome::Overload`], from which an
    /// adaptive limit learns, or a request that was wrong to begin with to [`Outcome::Ignored`]. If `classify` panics, it is
    /// `Ignored`.
    ///
    /// # Errors
    /// As [`run`](Policy::run).
    ///
    /// # Cancel safety
    /// As [`run`](Policy::run).
    ///
    /// ```
    /// # use tollgate::{ManualClock, Outcome, Policy, RunError, Semaphore};
    /// let clock = ManualClock::new();
    /// let policy = Policy::builder().on(&clock).limit(Semaphore::new(10)).build()?;
    /// let call = policy.run_classified(
    ///     1,
    ///     || async { Err::<(), _>("timed out") },
    ///     |result| match result {
    ///         Ok(()) => Outcome::Success,
    ///         Err(_) => Outcome::Overload, // Limiters that learn from outcomes see this one.
    ///     },
    /// );
    /// assert!(matches!(clock.run(call.into_future()), Err(RunError::Failed("timed out"))));
    /// assert_eq!(policy.limiter().in_use(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_classified<T, E, W>(
        &self,
        ask: impl Into<Ask>,
        work: impl FnOnce() -> W,
        classify: impl FnOnce(&Result<T, E>) -> Outcome,
    ) -> Run<impl Future<Output = Result<T, RunError<E>>>>
    where
        W: Future<Output = Result<T, E>>,
    {
        let ask = ask.into();
        Run(async move {
            let permit = self.admit(ask).await.map_err(RunError::Refused)?;
            let result = work().await;
            permit.finish(classify(&result));
            result.map_err(RunError::Failed)
        })
    }
}

/// Work that a policy is asked to run. Made by [`Policy::run`]; nothing happens before it is awaited.
///
/// ```
/// # use tollgate::{ManualClock, Policy, Refusal, Semaphore};
/// let policy = Policy::builder().limit(Semaphore::new(0)).max_queue(0).build()?;
/// let fresh = policy.run(1, async || Ok::<_, &str>("fresh"));
/// let result = ManualClock::new().run(fresh.or_else(async |_: Refusal| Ok("cached")));
/// assert_eq!(result, Ok("cached"));
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[must_use = "nothing happens before it is awaited"]
pub struct Run<F>(F);

impl<T, E, F: Future<Output = Result<T, RunError<E>>>> Run<F> {
    /// On a refusal, the result of `fallback` instead. Work that was admitted and failed is not tried again.
    ///
    /// # Errors
    /// The error of the work, or of the fallback.
    ///
    /// # Cancel safety
    /// As [`Policy::run`].
    pub async fn or_else<W>(self, fallback: impl FnOnce(Refusal) -> W) -> Result<T, E>
    where
        W: Future<Output = Result<T, E>>,
    {
        match self.0.await {
            Ok(value) => Ok(value),
            Err(RunError::Failed(error)) => Err(error),
            Err(RunError::Refused(refusal)) => fallback(refusal).await,
        }
    }
}

impl<F: Future> IntoFuture for Run<F> {
    type Output = F::Output;
    type IntoFuture = F;

    fn into_future(self) -> F {
        self.0
    }
}

impl<F> fmt::Debug for Run<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run").finish_non_exhaustive()
    }
}

/// Why work has given nothing. The operator `?` turns it into a boxed error, as it does a [`Refusal`].
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock, Policy, Semaphore};
/// # use tollgate::policy::RunError;
/// let policy = Policy::builder().limit(Semaphore::new(1)).max_queue(0).build()?;
/// let failed = ManualClock::new().run(async { policy.run(1, async || Err::<(), _>("no route")).await });
/// assert!(matches!(failed, Err(RunError::Failed("no route"))));
/// let _held = policy.try_admit(1).unwrap();
/// let refused = ManualClock::new().run(async { policy.run(1, async || Ok::<_, &str>(())).await });
/// let Err(RunError::Refused(refusal)) = refused else { panic!() };
/// assert_eq!(refusal.leg(), "semaphore");
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError<E> {
    /// It was not admitted, and has not begun.
    Refused(Refusal),
    /// It was admitted, and failed.
    Failed(E),
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

macro_rules! into_boxed_error {
    ($($error:ty),*) => {$(
        impl<E: Into<Box<$error>>> From<RunError<E>> for Box<$error> {
            fn from(error: RunError<E>) -> Self {
                match error {
                    RunError::Refused(refusal) => refusal.into(),
                    RunError::Failed(error) => error.into(),
                }
            }
        }
    )*};
}
into_boxed_error!(dyn Error, dyn Error + Send + Sync);
