//! The ledger of a semaphore whose permits are tokens: how many there should be, and how many exist.
//!
//! Invariant: while it is open, at least as many exist as the limit says. Tokens beyond the limit are debt: each is
//! destroyed, not put back, as soon as a caller has it in hand.

/// How many tokens there should be, and how many exist, held or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ledger {
    limit: usize,
    existing: usize,
    closed: bool,
}

/// The fate of a token that a caller has in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the ledger has counted it already"]
pub(crate) enum Fate {
    /// It is free again.
    Kept,
    /// It no longer exists: it has paid for a shrink, or the semaphore is closed.
    Swallowed,
}

impl Ledger {
    /// No tokens, and none wanted.
    pub(crate) fn new() -> Self {
        Self {
            limit: 0,
            existing: 0,
            closed: false,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Held or free.
    pub(crate) fn existing(&self) -> usize {
        self.existing
    }

    /// How many more exist than the limit allows.
    pub(crate) fn debt(&self) -> usize {
        self.existing.saturating_sub(self.limit)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Changes the limit. Returns how many tokens the caller has to make; they count as existing from now on. Tokens
    /// that exist already, as debt, are not made again.
    #[must_use = "the ledger counts the tokens already"]
    pub(crate) fn set_limit(&mut self, limit: usize) -> usize {
        self.limit = limit;
        if self.closed {
            return 0;
        }
        let made = limit.saturating_sub(self.existing);
        self.existing += made;
        made
    }

    /// A token is in hand: a returned one, or a free one that is inspected.
    pub(crate) fn judge(&mut self) -> Fate {
        if self.closed || self.existing > self.limit {
            self.existing -= 1;
            Fate::Swallowed
        } else {
            Fate::Kept
        }
    }

    /// `n` held tokens will never come back: they come off the limit too. That pays a debt only where nothing is left
    /// of the limit.
    pub(crate) fn lose(&mut self, n: usize) {
        self.existing -= n;
        self.limit = self.limit.saturating_sub(n);
    }

    /// No token is free again, or made, from now on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(limit: usize) -> Ledger {
        let mut ledger = Ledger::new();
        assert_eq!(ledger.set_limit(limit), limit);
        ledger
    }

    #[test]
    fn a_shrink_is_paid_by_returned_tokens() {
        let mut ledger = open(3);
        assert_eq!((ledger.set_limit(1), ledger.debt()), (0, 2));
        assert_eq!([ledger.judge(), ledger.judge()], [Fate::Swallowed; 2]);
        assert_eq!((ledger.judge(), ledger.existing()), (Fate::Kept, 1));
    }

    #[test]
    fn a_raise_forgives_the_debt_before_it_makes_anything() {
        let mut ledger = open(5);
        assert_eq!(ledger.set_limit(2), 0);
        assert_eq!((ledger.set_limit(4), ledger.debt()), (0, 1));
        assert_eq!((ledger.set_limit(7), ledger.existing()), (2, 7));
    }

    #[test]
    fn lost_tokens_come_off_the_limit_and_then_off_the_debt() {
        let mut ledger = open(10);
        assert_eq!(ledger.set_limit(3), 0);
        ledger.lose(2);
        assert_eq!((ledger.limit(), ledger.debt()), (1, 7));
        ledger.lose(5);
        assert_eq!((ledger.limit(), ledger.debt()), (0, 3));
    }

    #[test]
    fn nothing_is_kept_or_made_once_it_is_closed() {
        let mut ledger = open(2);
        ledger.close();
        assert_eq!((ledger.judge(), ledger.set_limit(9)), (Fate::Swallowed, 0));
        assert_eq!((ledger.existing(), ledger.debt()), (1, 0));
    }
}
