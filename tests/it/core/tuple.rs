//! Tuples of two to eight limiters: all or nothing, whichever leg refuses or panics.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tollgate::{Demand, Description, Legs, Limiter, LimiterExt, Outcome, Permit, Reason, Refusal, Semaphore, Wait};

/// What a leg does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bad {
    Refuses,
    PanicsAtReserve,
    PanicsAtCancel,
    PanicsAtFinish,
}

/// A leg that holds permits of `gate`, and has a fault if it is the one with the number of that.
pub(super) struct Held {
    pub(super) gate: Arc<Semaphore>,
    pub(super) bad: Option<Bad>,
    pub(super) ended: Arc<AtomicUsize>,
}

impl Held {
    fn is(&self, bad: Bad) -> bool {
        self.bad == Some(bad)
    }

    fn panics(&self, at: Bad) {
        if self.is(at) {
            resume_unwind(Box::new("a leg panicked"));
        }
    }
}

impl Limiter for Held {
    // As long as that of a bucket.
    type Ticket = ((u64, u64), <Semaphore as Limiter>::Ticket);
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Self::Ticket, Refusal> {
        self.panics(Bad::PanicsAtReserve);
        if self.is(Bad::Refuses) {
            return Err(Refusal::new(Reason::Closed, "bad", Wait::Never));
        }
        Ok(((7, 9), self.gate.try_reserve(demand)?))
    }
    fn cancel(&self, (words, ticket): Self::Ticket) {
        assert_eq!(words, (7, 9));
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.gate.cancel(ticket);
        self.panics(Bad::PanicsAtCancel);
    }
    fn finish(&self, (words, ticket): Self::Ticket, outcome: Outcome) {
        assert_eq!(words, (7, 9));
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.gate.finish(ticket, outcome);
        self.panics(Bad::PanicsAtFinish);
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        self.gate.look(demand)
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.gate.describe(visit);
    }
}

/// Some permits each, and how many tickets have ended.
pub(super) struct World {
    pub(super) gates: Vec<Arc<Semaphore>>,
    pub(super) ended: Arc<AtomicUsize>,
}

impl World {
    pub(super) fn new(legs: usize) -> Self {
        Self {
            gates: (0..legs).map(|_| Arc::new(Semaphore::new(5))).collect(),
            ended: Arc::default(),
        }
    }

    pub(super) fn leg(&self, number: usize, bad: Option<(usize, Bad)>) -> Held {
        Held {
            gate: Arc::clone(&self.gates[number]),
            bad: bad.filter(|(at, _)| *at == number).map(|(_, bad)| bad),
            ended: Arc::clone(&self.ended),
        }
    }

    fn in_use(&self) -> Vec<usize> {
        self.gates.iter().map(|gate| gate.in_use()).collect()
    }

    /// Admits, cancels and finishes at all legs; and finds nothing left at any, whichever leg is bad in whichever way.
    pub(super) fn all_or_nothing<L: Limiter>(&self, make: impl Fn(Option<(usize, Bad)>) -> L) {
        let legs = self.gates.len();
        let ended = || self.ended.swap(0, Ordering::Relaxed);
        let good = make(None);
        let permits: Vec<_> = (0..5).map(|_| good.try_admit(1).unwrap()).collect();
        assert_eq!(self.in_use(), vec![5; legs]);
        assert_eq!(good.try_admit(1).unwrap_err().reason(), Reason::Saturated);
        permits
            .into_iter()
            .enumerate()
            .for_each(|(number, permit)| match number % 2 {
                0 => permit.cancel(),
                _ => drop(permit),
            });
        assert_eq!((self.in_use(), ended()), (vec![0; legs], 5 * legs));
        for at in 0..legs {
            let bad = |bad| make(Some((at, bad)));
            let refused = bad(Bad::Refuses).try_admit(2).unwrap_err();
            assert_eq!((refused.leg(), self.in_use(), ended()), ("bad", vec![0; legs], at));
            let panicked = |act: &dyn Fn()| catch_unwind(AssertUnwindSafe(act)).is_err();
            assert!(panicked(&|| drop(bad(Bad::PanicsAtReserve).try_admit(2))));
            assert_eq!((self.in_use(), ended()), (vec![0; legs], at), "at {at}");
            assert!(panicked(&|| bad(Bad::PanicsAtCancel).try_admit(2).unwrap().cancel()));
            assert_eq!((self.in_use(), ended()), (vec![0; legs], legs), "at {at}");
            assert!(panicked(&|| bad(Bad::PanicsAtFinish)
                .try_admit(2)
                .unwrap()
                .finish(Outcome::Success)));
            assert_eq!((self.in_use(), ended()), (vec![0; legs], legs), "at {at}");
            assert!(panicked(&|| drop::<Permit<&L>>(
                bad(Bad::PanicsAtFinish).try_admit(2).unwrap()
            )));
            assert_eq!((self.in_use(), ended()), (vec![0; legs], legs), "at {at}");
        }
    }
}

macro_rules! tuples {
    ($($name:ident: $($number:literal)+;)*) => {$(
        #[test]
        fn $name() {
            let world = World::new([$($number),+].len());
            world.all_or_nothing(|bad| ($(world.leg($number, bad),)+));
            world.all_or_nothing(|bad| ($(world.leg($number, bad),)+).boxed());
            world.all_or_nothing(|bad| Legs::from_iter([$(world.leg($number, bad).boxed()),+]));
        }
    )*};
}

tuples! {
    two_legs_are_taken_all_or_nothing: 0 1;
    three_legs_are_taken_all_or_nothing: 0 1 2;
    four_legs_are_taken_all_or_nothing: 0 1 2 3;
    five_legs_are_taken_all_or_nothing: 0 1 2 3 4;
    six_legs_are_taken_all_or_nothing: 0 1 2 3 4 5;
    seven_legs_are_taken_all_or_nothing: 0 1 2 3 4 5 6;
    eight_legs_are_taken_all_or_nothing: 0 1 2 3 4 5 6 7;
}
