//! The state of one key as pure state machines: the reference for every store. Only authors of a [`Backend`](super::Backend)
//! need it.
//!
//! | part | what it is |
//! |---|---|
//! | [`Permits`], [`PermitsState`] | sessions with their units, and one queue |
//! | [`KeyLegs`] | rates, windows and permits of one key, taken from together, and the queue for the permits |
//! | [`Fill`], [`segment`] | a bucket and a window in whole numbers, for stores that count by themselves |
//! | [`random_number`] | for names that no other process may draw |
//!
//! A store of plain values reads the permits under the key, restores the model, carries out the sync, and writes the state if
//! the value is still the one that was read. [`Memory`](super::Memory) keeps the models as they are.
//!
//! Time is microseconds of the store's clock, and only has to grow.

mod bucket;
mod legs;
mod permits;
mod rates;

use super::backend::{Notification, Rule, Session, SyncReply, SyncRequest};
pub use super::random::number as random_number;
pub use bucket::Fill;
pub use legs::KeyLegs;
pub use permits::{Held, Permits, PermitsState, Queued};
pub(crate) use rates::Meter;
use rates::Rates;
pub use rates::segment;

/// The state of one key.
#[derive(Debug)]
pub(crate) enum Model {
    Permits(Permits),
    Rates(Rates),
}

/// The outcome of a sync: the reply, and the sessions to be notified.
///
/// ```
/// # use tollgate::remote::model::Permits;
/// # use tollgate::remote::{Request, Session, SyncRequest};
/// # use std::time::Duration;
/// let mut permits = Permits::new(1, 0);
/// let session = |client| Session { client, number: 0 };
/// let ask = |client| {
///     let mut sync = SyncRequest::first(session(client), Duration::from_secs(10));
///     sync.requests.push(Request { id: 1, need: 1, want: 1, queue: true });
///     sync
/// };
/// permits.sync(1_000, &ask(1));
/// permits.sync(1_000, &ask(2));
/// let end = SyncRequest { seq: 2, end: true, requests: vec![], ..ask(1) };
/// assert_eq!(permits.sync(2_000, &end).notify, [session(2)], "its turn has come");
/// ```
#[derive(Debug, Default)]
pub struct Outcome {
    /// The reply.
    pub reply: SyncReply,
    /// The sessions to be notified.
    pub notify: Vec<Session>,
}

impl Model {
    /// An empty model, whose tokens are greater than `token`.
    pub(crate) fn new(rule: &Rule, now: u64, token: u64) -> Self {
        match *rule {
            Rule::Permits { limit } => Self::Permits(Permits::new(limit, token)),
            Rule::Rate { .. } | Rule::Window { .. } => Self::Rates(Rates::new(rule, now, token)),
        }
    }

    /// True when it is for a rule of this kind.
    pub(crate) fn fits(&self, rule: &Rule) -> bool {
        match self {
            Self::Permits(_) => matches!(rule, Rule::Permits { .. }),
            Self::Rates(rates) => rates.fits(rule),
        }
    }

    pub(crate) fn sync(&mut self, now: u64, rule: &Rule, sync: &SyncRequest) -> Outcome {
        match self {
            Self::Permits(model) => model.sync(now, sync),
            Self::Rates(model) => model.sync(now, rule, sync),
        }
    }

    /// True when the state may be deleted without a loss. A rate is kept until it is as good as new.
    pub(crate) fn is_empty(&self, now: u64) -> bool {
        match self {
            Self::Permits(model) => model.is_empty(),
            Self::Rates(model) => model.is_empty(now),
        }
    }

    /// The notification for `session`.
    pub(crate) fn notification(&self, session: Session) -> Notification {
        match self {
            Self::Permits(model) => model.notification(session),
            Self::Rates(_) => Notification::Sync,
        }
    }

    /// Advances the time.
    pub(crate) fn sweep(&mut self, now: u64) {
        match self {
            Self::Permits(model) => model.sweep(now),
            Self::Rates(model) => model.sweep(now),
        }
    }

    /// The highest token so far.
    pub(crate) fn token(&self) -> u64 {
        match self {
            Self::Permits(model) => model.token(),
            Self::Rates(model) => model.token(),
        }
    }
}

/// The next token: above the last, and not below the time, so that tokens grow even where the state was lost.
fn next_token(last: u64, now: u64) -> u64 {
    (last + 1).max(now)
}

/// Whole microseconds, rounded up.
///
/// ```
/// # use tollgate::remote::model::micros;
/// # use std::time::Duration;
/// assert_eq!(micros(Duration::from_millis(3)), 3_000);
/// ```
pub fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
