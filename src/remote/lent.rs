//! The short path of a leased rate: the whole tokens of this process's part in one word, from which callers take without the lock.
//!
//! The client lends what is there, for a moment. Whatever else is done under the lock first takes back what is left of it, so
//! that the client's state is whole then. What was spent meanwhile is counted at that point.
//!
//! | bits of the word | meaning |
//! |---|---|
//! | 40..64 | number of the loan, modulo `2^24` |
//! | 20..40 | admissions from it |
//! | 0..20 | tokens left |

use super::client::{Loan, RemoteTicket};
use crate::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering};

const TOKENS: u64 = Loan::MOST;
const ADMISSION: u64 = TOKENS + 1;
const LOAN: u64 = ADMISSION * ADMISSION;

// Invariants: no tokens are left and there are no admissions while nothing is lent. Only a holder of the client's lock lends and
// takes back.
#[derive(Debug, Default)]
pub(super) struct Lent {
    word: AtomicU64,
    most: AtomicU64,
    until: AtomicU64,
}

impl Lent {
    /// Takes `n` tokens, if they are lent at `now`.
    #[inline]
    pub(super) fn take(&self, n: u64, now: Instant) -> Option<RemoteTicket> {
        // Acquire: the bounds of a loan are written before it. Pairs with the store in `lend`.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            // Relaxed: ordered by the word. An exchange succeeds only while it has the number of the loan that these belong to.
            let (most, until) = (self.most.load(Ordering::Relaxed), self.until.load(Ordering::Relaxed));
            if n == 0 || n > most.min(word & TOKENS) || now.ticks() >= until {
                return None;
            }
            // An admission takes a token at least, so that their number does not overflow. Acquire: as above.
            let taken = word + ADMISSION - n;
            match (self.word).compare_exchange_weak(word, taken, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(RemoteTicket::leased(n, now)),
                Err(other) => word = other,
            }
        }
    }

    /// Takes back the tokens that are left, under the lock. Returns also the admissions from the loan.
    #[inline]
    pub(super) fn take_back(&self) -> Option<(u64, u64)> {
        // Relaxed: only holders of the lock begin and end loans.
        if self.word.load(Ordering::Relaxed).is_multiple_of(LOAN) {
            return None;
        }
        // Relaxed: an exchange of `take` comes before it, and is counted, or finds no tokens.
        let word = self.word.fetch_and(!(LOAN - 1), Ordering::Relaxed);
        Some((word & TOKENS, word % LOAN / ADMISSION))
    }

    /// Lends, under the lock, after everything was taken back.
    pub(super) fn lend(&self, loan: Loan) {
        let last = self.word.load(Ordering::Relaxed);
        self.most.store(loan.most, Ordering::Relaxed);
        self.until.store(loan.until.ticks(), Ordering::Relaxed);
        // Release: publishes the bounds. Pairs with the loads in `take`.
        self.word
            .store(last.wrapping_add(LOAN) + loan.tokens, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::thread;

    const EARLY: Instant = Instant::from_ticks(10);

    fn loan(tokens: u64, most: u64) -> Loan {
        let until = EARLY;
        Loan { tokens, most, until }
    }

    #[test]
    fn a_loan_is_taken_within_its_bounds_until_it_is_taken_back() {
        let (lent, before) = (Lent::default(), Instant::from_ticks(9));
        assert_eq!(
            (lent.take(1, before), lent.take_back()),
            (None, None),
            "nothing is lent"
        );
        for _ in 0..3 {
            lent.lend(loan(7, 3));
            assert_eq!(lent.take(3, before), Some(RemoteTicket::leased(3, before)));
            assert_eq!(
                (lent.take(0, before), lent.take(4, before)),
                (None, None),
                "none, and a large ask"
            );
            assert_eq!(lent.take(1, EARLY), None, "the loan is over");
            assert!(lent.take(3, before).is_some() && lent.take(2, before).is_none());
            assert_eq!((lent.take_back(), lent.take_back()), (Some((1, 2)), None));
            assert_eq!(lent.take(1, before), None);
        }
    }

    /// The number of the loan overflows in the middle.
    #[test]
    fn tokens_lent_again_and_again_are_spent_or_taken_back_once() {
        const LOANS: u64 = 2_000;
        let lent = Lent::default();
        lent.word
            .store(LOAN.wrapping_mul(LOANS / 2).wrapping_neg(), Ordering::Relaxed);
        let lock = Mutex::new((0_u64, 0_u64));
        let spent = thread::scope(|scope| {
            let callers = [1, 3].map(|n| {
                let (lent, lock) = (&lent, &lock);
                scope.spawn(move || {
                    let mut spent = (0, 0);
                    for _ in 0..LOANS {
                        while lent.take(n, Instant::ZERO).is_some() {
                            spent = (spent.0 + n, spent.1 + 1);
                        }
                        let mut counted = lock.lock();
                        if let Some((left, admissions)) = lent.take_back() {
                            *counted = (counted.0 + 10 - left, counted.1 + admissions);
                        }
                        lent.lend(loan(10, 3));
                    }
                    spent
                })
            });
            let [one, three] = callers.map(|caller| caller.join().expect("no panic"));
            (one.0 + three.0, one.1 + three.1)
        });
        let (left, admissions) = lent.take_back().expect("a loan");
        let counted = lock.into_inner();
        assert_eq!((counted.0 + 10 - left, counted.1 + admissions), spent);
    }
}
