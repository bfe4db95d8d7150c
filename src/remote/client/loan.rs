//! Loans: what is free here, and is taken without a change of the client until it is taken back. That comes before any change.

use super::ticket::UNCOUNTED;
use super::{Client, Instant};

/// What is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct Loan {
    pub(in crate::remote) units: u64,
    /// Larger asks are for the client.
    pub(in crate::remote) most: u64,
    /// From then on the units cannot be taken.
    pub(in crate::remote) until: Instant,
    /// Of permits: their session and the token of their grant, and the number of the first of them. Otherwise
    /// [`TOKENS`](Self::TOKENS).
    pub(in crate::remote) term: u64,
    pub(in crate::remote) token: u64,
    pub(in crate::remote) order: u64,
}

impl Loan {
    /// The most units.
    pub(in crate::remote) const MOST: u64 = (1 << 20) - 1;
    /// The term of a loan that is spent.
    pub(in crate::remote) const TOKENS: u64 = UNCOUNTED;
}

/// What becomes of a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::remote) struct Returned {
    pub(in crate::remote) lent: u64,
    /// More than were lent, where permits from before have come back.
    pub(in crate::remote) left: u64,
    /// The fewest that were left.
    pub(in crate::remote) least: u64,
    pub(in crate::remote) admissions: u64,
}

impl Client {
    /// Lends the units that are free after an admission, while no waiter is queued.
    pub(in crate::remote) fn lend(&mut self, now: Instant) -> Option<Loan> {
        if !self.queue.is_empty() || self.recall_at.is_some() || self.config.spends() {
            return None;
        }
        // The process is checked again then: it may be a copy.
        let until = self.deadline()?.min(self.known_until);
        let loan = if self.config.capacity {
            self.loan_of_tokens(now, until)?
        } else {
            // All of them may come to the loan.
            if self.units.held > Loan::MOST {
                return None;
            }
            let kept = self.config.prefetch?.low;
            let (token, order) = self.units.next();
            Loan {
                units: self.units.free().saturating_sub(kept),
                most: Loan::MOST,
                until,
                term: self.term,
                token,
                order,
            }
        };
        (loan.units > 0 && now < loan.until).then_some(loan)
    }

    /// Takes back what is left of a loan.
    pub(in crate::remote) fn take_back(&mut self, returned: Returned) {
        self.counters.granted += returned.admissions;
        if let Some(capacity) = &mut self.capacity {
            capacity.take_back(&returned);
        } else {
            self.units.take_back(&returned);
        }
    }
}
