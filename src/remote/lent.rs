//! The short path of leased rates and of prefetched permits: units that are free here stand in one word, from which callers take,
//! and to which permits go back, without the lock.
//!
//! The client lends what is free, for a moment, while no waiter is queued. Whatever else is done under the lock first takes back what is
//! left of it, so that the client's state is whole then. What was taken meanwhile is counted at that point.
//!
//! | bits of the word | meaning |
//! |---|---|
//! | 40..64 | number of the loan, modulo `2^24` |
//! | 20..40 | admissions from it, modulo `2^20` of permits |
//! | 0..20 | units left |

use super::client::{Loan, RemoteTicket, Returned};
use crate::sync::shim::atomic::{AtomicU64, Ordering};
use crate::time::Instant;

const UNITS: u64 = Loan::MOST;
const ADMISSION: u64 = UNITS + 1;
const LOAN: u64 = ADMISSION * ADMISSION;

// Invariants: no units are left and there are no admissions while nothing is lent. Only a holder of the client's lock lends and
// takes back.
#[derive(Debug, Default)]
pub(super) struct Lent {
    word: AtomicU64,
    /// The loan of the word's number.
    units: AtomicU64,
    most: AtomicU64,
    until: AtomicU64,
    term: AtomicU64,
    token: AtomicU64,
    order: AtomicU64,
    /// The fewest units left.
    least: AtomicU64,
}

impl Lent {
    /// Takes `n` units, if they are lent at `now`.
    #[inline]
    pub(super) fn take(&self, n: u64, now: Instant) -> Option<RemoteTicket> {
        // Acquire: the bounds of a loan are written before it, and what was done under permits that came back is known. Pairs with the
        // store in `lend` and the exchange in `put_back`.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            // Relaxed: ordered by the word. An exchange succeeds only while it has the number of the loan that these belong to.
            let (most, until) = (self.most.load(Ordering::Relaxed), self.until.load(Ordering::Relaxed));
            let (term, token) = (self.term.load(Ordering::Relaxed), self.token.load(Ordering::Relaxed));
            let admissions = word % LOAN / ADMISSION;
            let order = self.order.load(Ordering::Relaxed) + admissions;
            if n == 0 || n > most.min(word & UNITS) || now.ticks() >= until || admissions == UNITS {
                return None;
            }
            // Relaxed: within a loan no word comes again, so the load above has seen all that this one sees.
            let taken = word + ADMISSION - n;
            match (self.word).compare_exchange_weak(word, taken, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) if term == Loan::TOKENS => return Some(RemoteTicket::leased(n, now)),
                Ok(_) => {
                    let left = taken & UNITS;
                    // Relaxed: a hint, by which idle permits go back. It may be late, for the next loan.
                    if left < self.least.load(Ordering::Relaxed) {
                        self.least.fetch_min(left, Ordering::Relaxed);
                    }
                    return Some(RemoteTicket::permits(n, term, token, order));
                }
                Err(other) => word = other,
            }
        }
    }

    /// Takes permits back, if they are of the grant that is lent.
    #[inline]
    pub(super) fn put_back(&self, ticket: &RemoteTicket) -> bool {
        // Acquire: as in `take`.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            // Relaxed: as in `take`.
            let (term, token) = (self.term.load(Ordering::Relaxed), self.token.load(Ordering::Relaxed));
            if word % LOAN == 0 || ticket.units == 0 || (ticket.term, ticket.token) != (term, token) {
                return false;
            }
            // All units held are few enough for the word. Release: hands on what was done under the permits. Pairs with the
            // exchange in `take`.
            match (self.word).compare_exchange_weak(word, word + ticket.units, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => word = other,
            }
        }
    }

    /// Takes back what is left, under the lock.
    #[inline]
    pub(super) fn take_back(&self) -> Option<Returned> {
        // Relaxed: only holders of the lock begin and end loans.
        if self.word.load(Ordering::Relaxed) % LOAN == 0 {
            return None;
        }
        // Acquire: as in `take`, for the next holder of the lock. An exchange of `take` or `put_back` comes before it, and is counted,
        // or finds no loan.
        let word = self.word.fetch_and(!(LOAN - 1), Ordering::Acquire);
        Some(Returned {
            lent: self.units.load(Ordering::Relaxed),
            left: word & UNITS,
            least: self.least.load(Ordering::Relaxed).min(word & UNITS),
            admissions: word % LOAN / ADMISSION,
        })
    }

    /// Lends, under the lock, after everything was taken back.
    pub(super) fn lend(&self, loan: Loan) {
        let last = self.word.load(Ordering::Relaxed);
        for (bound, value) in [
            (&self.units, loan.units),
            (&self.most, loan.most),
            (&self.until, loan.until.ticks()),
            (&self.term, loan.term),
            (&self.token, loan.token),
            (&self.order, loan.order),
            (&self.least, loan.units),
        ] {
            bound.store(value, Ordering::Relaxed);
        }
        // Release: publishes the bounds. Pairs with the loads in `take`.
        self.word.store(last.wrapping_add(LOAN) + loan.units, Ordering::Release);
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::thread;

    const EARLY: Instant = Instant::from_ticks(10);

    fn loan(units: u64, most: u64) -> Loan {
        Loan {
            units,
            most,
            until: EARLY,
            term: Loan::TOKENS,
            token: 0,
            order: 0,
        }
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
            let back = lent.take_back().expect("a loan");
            assert_eq!(
                (back.lent, back.left, back.admissions, lent.take_back()),
                (7, 1, 2, None)
            );
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
                        if let Some(back) = lent.take_back() {
                            *counted = (counted.0 + back.lent - back.left, counted.1 + back.admissions);
                        }
                        lent.lend(loan(10, 3));
                    }
                    spent
                })
            });
            let [one, three] = callers.map(|caller| caller.join().expect("no panic"));
            (one.0 + three.0, one.1 + three.1)
        });
        let back = lent.take_back().expect("a loan");
        let counted = lock.into_inner();
        assert_eq!((counted.0 + back.lent - back.left, counted.1 + back.admissions), spent);
    }

    fn grant(units: u64, token: u64, order: u64) -> Loan {
        Loan {
            term: 1,
            token,
            order,
            ..loan(units, u64::MAX)
        }
    }

    #[test]
    fn permits_go_back_to_the_loan_of_their_grant() {
        let lent = Lent::default();
        lent.lend(grant(5, 40, 7));
        let [one, two] = [1, 2].map(|n| lent.take(n, Instant::ZERO).expect("they are free"));
        assert_eq!((one.token, one.order, two.order), (40, 7, 8));
        assert!(lent.put_back(&two) && lent.take(4, Instant::ZERO).is_some());
        let other = RemoteTicket { token: 39, ..one };
        assert!(!lent.put_back(&other) && !lent.put_back(&RemoteTicket { term: 2, ..one }));
        let back = lent.take_back().expect("a loan");
        assert_eq!((back.lent, back.left, back.least, back.admissions), (5, 0, 0, 3));
        assert!(!lent.put_back(&one), "nothing is lent");
        // A permit from before comes to a loan of the same grant.
        lent.lend(grant(2, 40, 10));
        assert!(lent.put_back(&one) && lent.take_back().is_some_and(|back| (back.left, back.least) == (3, 2)));
    }

    /// Two callers beside a third thread that ends loans and begins others.
    #[test]
    fn no_more_permits_are_out_than_were_lent() {
        const PERMITS: u64 = 3;
        let (lent, out, orders) = (Lent::default(), AtomicU64::new(0), Mutex::new(Vec::new()));
        // What is free and not lent, and the number of the next permit.
        let client = Mutex::new((PERMITS, 0));
        let visit = |freed: u64| {
            let mut client = client.lock();
            let (free, order) = &mut *client;
            if let Some(back) = lent.take_back() {
                (*free, *order) = (*free + back.left, *order + back.admissions);
            }
            *free += freed;
            if *free > 0 {
                lent.lend(grant(std::mem::take(free), 40, *order));
            }
        };
        thread::scope(|scope| {
            for n in [1, 2] {
                let (lent, out, orders, visit) = (&lent, &out, &orders, &visit);
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    while mine.len() < 2_000 {
                        let Some(ticket) = lent.take(n, Instant::ZERO) else {
                            visit(0);
                            continue;
                        };
                        assert!(out.fetch_add(n, Ordering::AcqRel) + n <= PERMITS);
                        mine.push(ticket.order);
                        out.fetch_sub(n, Ordering::AcqRel);
                        if !lent.put_back(&ticket) {
                            visit(n);
                        }
                    }
                    orders.lock().extend(mine);
                });
            }
            (0..2_000).for_each(|_| visit(0));
        });
        visit(0);
        assert_eq!(lent.take_back().map(|back| back.left), Some(PERMITS), "all are back");
        let mut orders = orders.into_inner();
        orders.sort_unstable();
        orders.dedup();
        assert_eq!(orders.len(), 4_000, "each has a number of its own");
    }
}
