//! Those who want to be told when a semaphore has come to rest, or has more to give, as plain data beside its queue.

use std::task::Waker;

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Nothing is held.
    Idle,
    /// No more is held than the limit allows.
    Paid,
    /// There are more permits than so many.
    #[cfg(feature = "fan-out")]
    Above(usize),
}

/// What there is to see of a semaphore.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PermitState {
    pub(crate) available: i64,
    pub(crate) limit: i64,
}

impl Condition {
    /// True when it has come.
    pub(crate) fn has_come(self, sight: PermitState) -> bool {
        match self {
            Condition::Idle => sight.available >= sight.limit,
            Condition::Paid => sight.available >= 0,
            #[cfg(feature = "fan-out")]
            Condition::Above(limit) => usize::try_from(sight.limit).is_ok_and(|now| now > limit),
        }
    }
}

/// Everybody who watches.
#[derive(Debug)]
pub(crate) struct Watchers {
    list: Vec<(u64, Condition, Waker)>,
    next: u64,
}

impl Watchers {
    pub(crate) const fn new() -> Self {
        Self {
            list: Vec::new(),
            next: 0,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a watcher, or leaves another waker for the one with this number. Returns its number, and the waker that was
    /// there.
    pub(crate) fn watch(&mut self, number: Option<u64>, rest: Condition, waker: Waker) -> (u64, Option<Waker>) {
        if let Some(known) = self.list.iter_mut().find(|known| Some(known.0) == number) {
            return (known.0, Some(std::mem::replace(&mut known.2, waker)));
        }
        self.next += 1;
        self.list.push((self.next, rest, waker));
        (self.next, None)
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.list.iter().any(|known| known.0 == number)
    }

    pub(crate) fn leave(&mut self, number: u64) -> Option<Waker> {
        let at = self.list.iter().position(|known| known.0 == number)?;
        Some(self.list.swap_remove(at).2)
    }

    /// Takes out those whose rest has come.
    pub(crate) fn told(&mut self, sight: PermitState) -> Vec<Waker> {
        let come = self.list.extract_if(.., |known| known.1.has_come(sight));
        come.map(|known| known.2).collect()
    }
}
