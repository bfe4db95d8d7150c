//! What a store remembers of one key, as pure state machines: the reference for every backend, and, for stores that know
//! nothing but documents, the document. Time is microseconds of the store's clock.

mod bucket;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod dated;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod note;
mod permits;
mod rates;
#[cfg(feature = "consul")]
#[allow(dead_code, reason = "not every store needs all of it")]
mod sheet;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod turn;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
mod witness;

use super::backend::{News, Reply, Rule, Session, Step};
pub(crate) use bucket::Fill;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(crate) use dated::{Clock, Time};
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(crate) use note::Note;
pub(crate) use permits::Permits;
pub(crate) use rates::{Kind as Meter, Rates};
#[cfg(feature = "consul")]
pub(crate) use sheet::Sheet;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(crate) use turn::{After, Odd, Turn, fresh_in, turn};
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(crate) use witness::Witness;

/// The state of one key.
#[derive(Debug)]
pub(crate) enum Book {
    Permits(Permits),
    Rates(Rates),
}

/// What a step comes to: the answer, and who is to be told that there is news.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reply: Reply,
    pub(crate) told: Vec<Session>,
}

impl Book {
    /// An empty one, whose tokens are greater than `token`.
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

    pub(crate) fn step(&mut self, now: u64, rule: &Rule, step: &Step) -> Outcome {
        match self {
            Self::Permits(book) => book.step(now, step),
            Self::Rates(book) => book.step(now, rule, step),
        }
    }

    /// True when nothing is lost with it. A rate is remembered until it is as good as new.
    pub(crate) fn is_empty(&self, now: u64) -> bool {
        match self {
            Self::Permits(book) => book.is_empty(),
            Self::Rates(book) => book.is_empty(now),
        }
    }

    /// What `session` is told when there is news.
    pub(crate) fn told(&self, session: Session) -> News {
        match self {
            Self::Permits(book) => book.told(session),
            Self::Rates(_) => News::Look,
        }
    }

    /// Lets time pass.
    pub(crate) fn sweep(&mut self, now: u64) {
        match self {
            Self::Permits(book) => book.sweep(now),
            Self::Rates(book) => book.sweep(now),
        }
    }

    /// The highest token so far.
    pub(crate) fn token(&self) -> u64 {
        match self {
            Self::Permits(book) => book.token(),
            Self::Rates(book) => book.token(),
        }
    }
}

/// The next token: above the last, and not below the time, so that tokens grow even where the book was lost.
fn next_token(last: u64, now: u64) -> u64 {
    (last + 1).max(now)
}

/// Whole microseconds, rounded up.
pub(crate) fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
