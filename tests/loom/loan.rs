//! Loans of remote permits: the word from which callers take without the lock of the client. The source is compiled once more, over these
//! types.

use crate::bounded;
use crate::time::Instant;
use client::{Loan, RemoteTicket};
use lent::Lent;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

#[path = "../../src/remote/lent.rs"]
mod lent;

#[allow(dead_code, reason = "the fields are those of the library")]
mod client {
    /// As in the library.
    pub(super) struct Loan {
        pub(super) units: u64,
        pub(super) most: u64,
        pub(super) until: crate::time::Instant,
        pub(super) term: u64,
        pub(super) token: u64,
        pub(super) order: u64,
    }

    impl Loan {
        pub(super) const MOST: u64 = (1 << 20) - 1;
        pub(super) const TOKENS: u64 = 0;
    }

    pub(super) struct Returned {
        pub(super) lent: u64,
        pub(super) left: u64,
        pub(super) least: u64,
        pub(super) admissions: u64,
    }

    #[derive(Debug)]
    pub(super) struct RemoteTicket {
        pub(super) units: u64,
        pub(super) term: u64,
        pub(super) token: u64,
        pub(super) order: u64,
    }

    impl RemoteTicket {
        pub(super) fn permits(units: u64, term: u64, token: u64, order: u64) -> Self {
            Self {
                units,
                term,
                token,
                order,
            }
        }

        pub(super) fn leased(units: u64, now: crate::time::Instant) -> Self {
            Self::permits(units, 0, now.0, 0)
        }
    }
}

const TOKEN: u64 = 40;

fn grant(units: u64, token: u64) -> Loan {
    Loan {
        units,
        most: u64::MAX,
        until: Instant(1),
        term: 1,
        token,
        order: 0,
    }
}

fn take(lent: &Lent) -> Option<RemoteTicket> {
    lent.take(1, Instant(0))
}

/// What one permit guards. The cell notices an access beside another, or one that does not see the last.
struct Guarded(UnsafeCell<u32>);

impl Guarded {
    fn change(&self) {
        self.0.with_mut(|_| ());
    }
}

/// Given one permit, when two threads take it and put it back, then each sees what the other has done under it.
#[test]
fn a_permit_that_goes_back_to_a_loan_hands_on_what_was_done_under_it() {
    bounded(None, || {
        let shared = Arc::new((Lent::default(), Guarded(UnsafeCell::new(0))));
        shared.0.lend(grant(1, TOKEN));
        let work = |shared: &(Lent, Guarded)| {
            if let Some(ticket) = take(&shared.0) {
                shared.1.change();
                assert!(shared.0.put_back(&ticket));
            }
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || work(&shared))
        };
        work(&shared);
        other.join().unwrap();
        assert_eq!(shared.0.take_back().map(|back| (back.lent, back.left)), Some((1, 1)));
    });
}

/// Given one permit, when it goes back while the loan ends, then it is counted once, and who ends the loan sees what was done under it.
#[test]
fn a_permit_beside_the_end_of_its_loan_is_counted_once() {
    bounded(None, || {
        let shared = Arc::new((Lent::default(), Guarded(UnsafeCell::new(0))));
        shared.0.lend(grant(1, TOKEN));
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let ticket = take(&shared.0)?;
                shared.1.change();
                (!shared.0.put_back(&ticket)).then_some(ticket)
            })
        };
        let back = shared.0.take_back().expect("a loan");
        if back.left == 1 {
            shared.1.change();
        }
        let still_out = other.join().unwrap();
        assert_eq!(back.left, u64::from(still_out.is_none()));
    });
}

/// Given a loan that ends, and one of a later grant, then a permit has the token of the loan that counts it, and goes back to that alone.
#[test]
fn a_permit_has_the_token_of_its_own_loan() {
    bounded(2, || {
        let lent = Arc::new(Lent::default());
        lent.lend(grant(1, TOKEN));
        let other = {
            let lent = Arc::clone(&lent);
            thread::spawn(move || {
                let ticket = take(&lent)?;
                let is_back = lent.put_back(&ticket);
                Some((ticket, is_back))
            })
        };
        let first = lent.take_back().expect("a loan");
        lent.lend(grant(1, TOKEN + 1));
        let taken = other.join().unwrap();
        let second = lent.take_back().expect("a loan");
        let admissions = taken.as_ref().map_or([0, 0], |(ticket, _)| match ticket.token {
            TOKEN => [1, 0],
            _ => [0, 1],
        });
        assert_eq!([first.admissions, second.admissions], admissions);
        let out = taken.is_some_and(|(_, is_back)| !is_back);
        assert_eq!(first.left + second.left, 2 - u64::from(out));
    });
}
