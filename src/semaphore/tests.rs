//! The heads of policies at a semaphore, step by step, and random programs of heads and callers.

use super::atomic::Semaphore;
use super::limiter::SemaphoreTicket;
use crate::core::ask::{Ask, Demand, Role, Waiting};
use crate::core::limiter::{Limiter, Outcome};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::rng::Rng;
use crate::sync::wait_queue::{Key, Place, WaitQueue};
use crate::time::ClockReading;
use std::task::{Poll, Waker};

const NOTHING: Ask = Ask::many(0);

/// The head of a policy.
struct Head(Place);

impl Head {
    fn new() -> Self {
        Self(Place::new(Waker::noop().clone()))
    }

    /// One that is older than all that come.
    fn old() -> Self {
        let head = Self::new();
        head.0.join(&WaitQueue::new("other"));
        head
    }

    fn demand<R>(&self, units: u64, role: Role, ask: impl FnOnce(&Demand<'_>) -> R) -> R {
        let (place, answers) = (Some(&self.0), None);
        let waiting = Waiting {
            ahead: &NOTHING,
            place,
            role,
            answers,
        };
        ask(&Demand::waiting(&Ask::many(units), &ClockReading::default(), &waiting))
    }

    fn look(&self, semaphore: &Semaphore, units: u64, role: Role) -> Result<(), Refusal> {
        self.demand(units, role, |demand| semaphore.look(demand))
    }

    fn joins(&self, semaphore: &Semaphore, units: u64) -> bool {
        self.look(semaphore, units, Role::Joining).is_err()
    }

    fn is_ready(&self, semaphore: &Semaphore, units: u64) -> bool {
        self.look(semaphore, units, Role::Head).is_ok()
    }

    fn take(&self, semaphore: &Semaphore, units: u64) -> Result<SemaphoreTicket, Refusal> {
        self.demand(units, Role::Head, |demand| semaphore.try_reserve(demand))
    }

    /// The units that it was granted and has not redeemed.
    fn granted(&self, semaphore: &Semaphore) -> u64 {
        let age = self.0.age();
        age.and_then(|age| semaphore.queue.lock().granted(age)).unwrap_or(0)
    }
}

#[test]
fn a_grant_is_redeemed_once() {
    let (semaphore, head) = (Semaphore::new(1), Head::new());
    let held = semaphore.try_acquire().unwrap();
    assert!(head.joins(&semaphore, 1));
    assert_eq!(head.take(&semaphore, 1).unwrap_err().reason(), Reason::Saturated);
    drop(held);
    assert!(head.is_ready(&semaphore, 1));
    assert_eq!((semaphore.in_use(), semaphore.waiting()), (1, 0));
    let ticket = head.take(&semaphore, 1).unwrap();
    assert!(head.take(&semaphore, 1).is_err());
    semaphore.finish(ticket, Outcome::Success);
    assert_eq!(semaphore.available_permits(), 1);
}

#[test]
fn a_grant_for_one_number_of_permits_is_not_redeemed_for_another() {
    for wanted in [1, 3] {
        let (semaphore, head) = (Semaphore::new(3), Head::new());
        let held = semaphore.try_acquire_many(2).unwrap();
        assert!(head.joins(&semaphore, 2));
        drop(held);
        assert_eq!(semaphore.in_use(), 2);
        assert!(head.is_ready(&semaphore, wanted));
        assert_eq!((semaphore.in_use(), semaphore.available_permits()), (0, 3));
    }
}

/// Keeps out tokio#2340.
#[test]
fn a_place_that_is_left_twice_changes_nothing() {
    let (semaphore, head) = (Semaphore::new(1), Head::new());
    let held = semaphore.try_acquire().unwrap();
    semaphore.leave(&head.0);
    assert!(head.joins(&semaphore, 1));
    let Ok(Some(caller)) = semaphore.take_or_join(1, Waker::noop()) else {
        panic!("none is free")
    };
    semaphore.leave(&head.0);
    semaphore.leave(&head.0);
    assert_eq!(semaphore.waiting(), 1);
    drop(held);
    assert!(matches!(semaphore.look_at(caller, Waker::noop()), Poll::Ready(Ok(()))));
    semaphore.release(1);
    assert_eq!(semaphore.available_permits(), 1);
}

/// Given a head in whose place a smaller one follows, when that looks, then it is granted what is free.
#[test]
fn a_head_that_wants_less_than_the_one_before_is_granted() {
    let (semaphore, head) = (Semaphore::new(3), Head::new());
    let _held = semaphore.try_acquire_many(2).unwrap();
    assert!(head.joins(&semaphore, 3));
    assert!(head.is_ready(&semaphore, 1));
    assert_eq!((semaphore.in_use(), semaphore.waiting()), (3, 0));
}

#[test]
fn an_older_head_takes_grants_back_from_younger_heads_the_youngest_first() {
    let (semaphore, old) = (Semaphore::new(3), Head::old());
    let (young, youngest) = (Head::new(), Head::new());
    let held = semaphore.try_acquire_many(3).unwrap();
    assert!(young.joins(&semaphore, 2) && youngest.joins(&semaphore, 1));
    drop(held);
    assert_eq!((young.granted(&semaphore), youngest.granted(&semaphore)), (2, 1));
    assert!(!old.joins(&semaphore, 1), "it is ready at once");
    assert_eq!((young.granted(&semaphore), youngest.granted(&semaphore)), (2, 0));
    assert!(youngest.take(&semaphore, 1).is_err() && young.take(&semaphore, 2).is_ok());
    let ticket = old.take(&semaphore, 1).unwrap();
    assert_eq!((semaphore.in_use(), semaphore.waiting()), (3, 1));
    semaphore.cancel(ticket);
    assert!(youngest.take(&semaphore, 1).is_ok());
}

#[test]
fn heads_and_callers_are_served_by_age() {
    let (semaphore, old, young) = (Semaphore::new(1), Head::old(), Head::new());
    let join = || match semaphore.take_or_join(1, Waker::noop()) {
        Ok(Some(caller)) => caller,
        _ => panic!("none is free"),
    };
    let is_served = |caller| semaphore.look_at(caller, Waker::noop()).is_ready();
    let held = semaphore.try_acquire().unwrap();
    let first = join();
    assert!(young.joins(&semaphore, 1));
    let (second, third) = (join(), join());
    assert!(old.joins(&semaphore, 1));
    drop(held);
    semaphore.cancel(old.take(&semaphore, 1).unwrap());
    assert!(is_served(first) && !is_served(second));
    semaphore.release(1);
    semaphore.cancel(young.take(&semaphore, 1).unwrap());
    assert!(!is_served(third) && is_served(second));
    semaphore.leave_at(Key::Caller(third));
    semaphore.release(1);
    assert_eq!((semaphore.available_permits(), semaphore.waiting()), (1, 0));
}

#[test]
fn an_older_head_takes_nothing_back_if_that_is_not_enough() {
    let (semaphore, old, young) = (Semaphore::new(3), Head::old(), Head::new());
    let held = semaphore.try_acquire_many(2).unwrap();
    assert!(young.joins(&semaphore, 2));
    drop(held);
    assert_eq!(young.granted(&semaphore), 2);
    let _held = semaphore.try_acquire().unwrap();
    assert!(old.joins(&semaphore, 3));
    assert_eq!(young.granted(&semaphore), 2);
}

#[test]
fn an_older_head_takes_nothing_back_from_a_caller() {
    let (semaphore, old) = (Semaphore::new(1), Head::old());
    let held = semaphore.try_acquire().unwrap();
    let Ok(Some(caller)) = semaphore.take_or_join(1, Waker::noop()) else {
        panic!("none is free")
    };
    drop(held);
    assert!(old.joins(&semaphore, 1));
    assert!(matches!(semaphore.look_at(caller, Waker::noop()), Poll::Ready(Ok(()))));
    semaphore.release(1);
    assert!(old.take(&semaphore, 1).is_ok());
}

#[test]
fn a_lowered_limit_takes_grants_back_from_heads_alone() {
    let (semaphore, head) = (Semaphore::new(2), Head::new());
    let held = semaphore.try_acquire_many(2).unwrap();
    let Ok(Some(caller)) = semaphore.take_or_join(1, Waker::noop()) else {
        panic!("none is free")
    };
    assert!(head.joins(&semaphore, 1));
    drop(held);
    assert_eq!((semaphore.in_use(), head.granted(&semaphore)), (2, 1));
    semaphore.set_limit(1);
    assert_eq!(
        (semaphore.in_use(), semaphore.debt(), head.granted(&semaphore)),
        (1, 0, 0)
    );
    assert!(head.take(&semaphore, 1).is_err());
    semaphore.set_limit(0);
    assert_eq!((semaphore.in_use(), semaphore.debt()), (1, 1));
    assert!(matches!(semaphore.look_at(caller, Waker::noop()), Poll::Ready(Ok(()))));
    semaphore.set_limit(2);
    assert!(head.take(&semaphore, 1).is_ok());
    semaphore.release(2);
    assert_eq!((semaphore.available_permits(), semaphore.waiting()), (2, 0));
}

#[test]
fn a_head_that_asks_for_more_than_the_limit_joins_nothing() {
    let (semaphore, head) = (Semaphore::new(2), Head::new());
    let refused = head.look(&semaphore, 3, Role::Joining).unwrap_err();
    assert_eq!((refused.reason(), refused.wait()), (Reason::Oversized, Wait::Never));
    assert_eq!((semaphore.waiting(), head.0.age()), (0, None));
}

#[test]
fn a_grant_before_the_close_comes_back_when_the_place_is_left() {
    let (semaphore, head) = (Semaphore::new(1), Head::new());
    let held = semaphore.try_acquire().unwrap();
    assert!(head.joins(&semaphore, 1));
    drop(held);
    semaphore.close();
    assert_eq!(head.take(&semaphore, 1).unwrap_err().reason(), Reason::Closed);
    assert_eq!(
        head.look(&semaphore, 1, Role::Head).unwrap_err().reason(),
        Reason::Closed
    );
    semaphore.leave(&head.0);
    assert_eq!((semaphore.in_use(), semaphore.available_permits()), (0, 1));
}

/// Given random programs of heads and callers, then after each step no permit is lost or made, and the oldest waiter lacks permits,
/// also with all that it could take back.
#[test]
fn any_program_of_heads_and_callers_keeps_the_invariants() {
    let mut rng = Rng::new(7);
    let mut random = |below: u64| rng.draw() % below;
    for _ in 0..3_000 {
        let semaphore = Semaphore::new(random(6) as usize);
        let heads: Vec<_> = (0..4).map(|_| Head::new()).collect();
        let mut callers: Vec<(usize, u64)> = Vec::new();
        let mut held: Vec<u64> = Vec::new();
        for _ in 0..60 {
            let (head, units) = (&heads[random(4) as usize], 1 + random(3));
            match random(12) {
                0..3 => drop(head.look(&semaphore, units, Role::Joining)),
                3 => drop(head.look(&semaphore, units, Role::Head)),
                4 | 5 if head.take(&semaphore, units).is_ok() => {
                    held.push(units);
                    semaphore.leave(&head.0);
                    head.0.end();
                }
                4 | 5 => {}
                6 => semaphore.leave(&head.0),
                7 => match semaphore.take_or_join(units, Waker::noop()).unwrap() {
                    Some(key) => callers.push((key, units)),
                    None => held.push(units),
                },
                8 if !callers.is_empty() => {
                    let at = random(callers.len() as u64) as usize;
                    let (key, units) = callers[at];
                    match random(2) {
                        0 => semaphore.leave_at(Key::Caller(key)),
                        _ if semaphore.look_at(key, Waker::noop()).is_ready() => held.push(units),
                        _ => continue,
                    }
                    callers.swap_remove(at);
                }
                9 => semaphore.set_limit(random(7) as usize),
                _ if !held.is_empty() => semaphore.release(held.swap_remove(random(held.len() as u64) as usize)),
                _ => {}
            }
            let waits = |key: usize| semaphore.queue.lock().waker(key).is_some();
            let granted: u64 = heads.iter().map(|head| head.granted(&semaphore)).sum();
            let of_callers = callers.iter().filter(|&&(key, _)| !waits(key)).map(|&(_, units)| units);
            let granted = granted + of_callers.sum::<u64>();
            assert_eq!(semaphore.in_use() as u64, held.iter().sum::<u64>() + granted);
            let first = semaphore.queue.lock().first_waiting();
            assert_eq!(semaphore.is_flagged(), first.is_some());
            if let Some((_, age, units)) = first {
                let younger = heads.iter().filter(|head| head.0.age() > Some(age));
                let back: u64 = younger.map(|head| head.granted(&semaphore)).sum();
                assert!(semaphore.signed_available() + (back as i64) < units as i64);
            }
            assert!(semaphore.debt() == 0 || heads.iter().all(|head| head.granted(&semaphore) == 0));
        }
        heads.iter().for_each(|head| semaphore.leave(&head.0));
        callers
            .iter()
            .for_each(|&(key, _)| semaphore.leave_at(Key::Caller(key)));
        held.into_iter().for_each(|units| semaphore.release(units));
        assert_eq!(
            (semaphore.in_use(), semaphore.waiting(), semaphore.is_flagged()),
            (0, 0, false)
        );
    }
}
