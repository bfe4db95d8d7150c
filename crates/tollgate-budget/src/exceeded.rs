//! Why a budget refuses, or stops a stream.

use crate::account::Denied;
use crate::budgets::{Level, write_level};
use crate::rule::Limit;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tollgate::Reason;

/// A budget has no room: the level, its limit, what was asked and what is left, and when to come back.
///
/// ```
/// use tollgate::{Ask, ManualClock};
/// use tollgate_budget::{Budgets, Limit, OUTPUT, Period, Rule};
///
/// let rule = Rule::new("user").per(["user"]).limit(Limit::cost(OUTPUT, 1_000, Period::Minute));
/// let budgets = Budgets::builder().rule(rule).on(&ManualClock::new()).build()?;
/// let account = budgets.account(&[("user", "ann")]);
/// let meter = account.reserve(Ask::one().cost(OUTPUT, 900)).unwrap();
/// let refused = account.reserve(Ask::one().cost(OUTPUT, 300)).unwrap_err();
/// assert_eq!(
///     refused.to_string(),
///     "budget user of user=ann: 300 output asked, 100 left of 1000 output per minute; retry after 60s"
/// );
/// # Ok::<(), tollgate_budget::BudgetError>(())
/// ```
#[derive(Clone)]
pub struct Exceeded {
    level: Arc<Level>,
    limit: usize,
    reason: Reason,
    asked: u64,
    left: u64,
    retry_after: Option<Duration>,
}

impl Exceeded {
    pub(crate) fn new(level: Arc<Level>, denied: &Denied, now: u64) -> Self {
        let ready = denied.ready.filter(|_| !denied.reason.is_permanent());
        Self {
            level,
            limit: denied.limit,
            reason: denied.reason,
            asked: denied.asked,
            left: denied.left,
            retry_after: ready.map(|ready| Duration::from_nanos(ready.saturating_sub(now))),
        }
    }

    /// The name of the rule.
    pub fn rule(&self) -> &str {
        self.level.name()
    }

    /// The level: each dimension by which the rule splits, with its value. Empty for the overflow level.
    pub fn key(&self) -> impl Iterator<Item = (&str, &str)> {
        self.level.pairs()
    }

    /// The limit that has no room.
    pub fn limit(&self) -> &Limit {
        &self.level.limits()[self.limit]
    }

    /// [`RateExceeded`](Reason::RateExceeded) or, for calls in flight, [`Saturated`](Reason::Saturated); for an ask that is larger than the
    /// limit [`Oversized`](Reason::Oversized), and for one that does not name the cost [`Unpriced`](Reason::Unpriced).
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The units that were asked for.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// The units that were left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The time after which all limits have room, if nothing else is admitted meanwhile. Of a stream that was stopped: after which the
    /// limit has room for one unit. `None` when that takes the end of another request, or when no instant helps.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, asked, left) = (self.limit(), self.asked, self.left);
        f.write_str("budget ")?;
        write_level(f, &self.level)?;
        match self.reason {
            Reason::Unpriced => write!(f, ": the request names no cost `{}`", limit.measure()),
            _ => write!(f, ": {asked} {} asked, {left} left of {limit}", limit.measure()),
        }?;
        write_retry_after(f, self.retry_after)
    }
}

/// Up to a minute exact, above in whole seconds, rounded up.
pub(crate) fn write_retry_after(f: &mut fmt::Formatter<'_>, after: Option<Duration>) -> fmt::Result {
    match after {
        Some(after) if after > Duration::from_secs(60) => {
            let begun = u64::from(after.subsec_nanos() > 0);
            write!(f, "; retry after {}s", after.as_secs().saturating_add(begun))
        }
        Some(after) => write!(f, "; retry after {after:?}"),
        None => Ok(()),
    }
}

impl fmt::Debug for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exceeded({self})")
    }
}

impl std::error::Error for Exceeded {}
