//! The word beside the lock of a leaky bucket: one unit, taken without the lock beside who takes it with.
//!
//! All instants are given: what is modelled is which step comes first, not what the clock says.

use crate::Passed;
use loom::thread;
use std::sync::Arc;
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{Ask, Demand, Inherit, Instant, LeakyBucket, Limiter, ManualClock, Quota, RateTicket};

const SECOND: Duration = Duration::from_secs(1);

struct Rig {
    clock: ManualClock,
    bucket: LeakyBucket,
}

impl Rig {
    /// At one a second. One unit was taken at the start, under the lock: so the word is open.
    fn opened() -> Arc<Self> {
        let clock = ManualClock::new();
        let bucket = LeakyBucket::new(Quota::per_second(1)).on(&clock);
        bucket.try_acquire(1).unwrap();
        Arc::new(Self { clock, bucket })
    }

    fn at(&self, at: Duration) -> ClockReading {
        ClockReading::at(&self.clock, self.clock.after(Instant::ZERO, at))
    }

    fn take(&self, at: Duration) -> Option<RateTicket<3>> {
        let (ask, reading) = (Ask::one(), self.at(at));
        self.bucket.try_reserve(Demand::new(&ask, &reading)).ok()
    }

    fn cancel(&self, ticket: RateTicket<3>, at: Duration) {
        self.bucket.cancel(ticket, &self.at(at));
    }

    /// How long after `at` nothing is left in the bucket, where that is the latest instant.
    fn empty_after(&self, at: Duration) -> Duration {
        self.clock.advance(at - self.clock.elapsed());
        self.bucket.time_until_full().unwrap()
    }
}

#[test]
fn one_unit_is_taken_once() {
    crate::exhaustive(|| {
        let rig = Rig::opened();
        let other = Arc::clone(&rig);
        let thread = thread::spawn(move || other.take(SECOND).is_some());
        let here = rig.take(SECOND).is_some();
        assert!(here ^ thread.join().unwrap());
        assert_eq!(rig.empty_after(SECOND), SECOND);
    });
}

/// Given a bucket that is empty again, when one unit is taken through the word beside a thread that takes the rest under the
/// lock, or only looks, then one unit has been taken.
#[test]
fn one_unit_is_taken_once_with_the_lock_or_without() {
    for takes in [1, 0] {
        crate::exhaustive(move || {
            let rig = Rig::opened();
            rig.clock.advance(SECOND);
            let (other, passed) = (Arc::clone(&rig), Passed::new());
            let pass = passed.clone();
            let thread = thread::spawn(move || {
                let taken = other.bucket.acquire_up_to(takes);
                pass.pass();
                taken
            });
            passed.or_not();
            let here = u64::from(rig.take(SECOND).is_some());
            let there = thread.join().unwrap();
            assert_eq!(here + there, 1);
            assert_eq!(rig.empty_after(SECOND), SECOND);
        });
    }
}

/// Given a unit that was taken through the word and is given back beside a caller that wants one at the same instant, then that one
/// is refused, or has it; and nothing is lost.
#[test]
fn a_unit_that_is_given_back_is_there_once() {
    crate::exhaustive(|| {
        let rig = Rig::opened();
        let held = rig.take(SECOND).unwrap();
        let other = Arc::clone(&rig);
        let thread = thread::spawn(move || other.take(SECOND).is_some());
        rig.cancel(held, SECOND);
        let taken = thread.join().unwrap();
        assert_eq!(rig.take(SECOND).is_some(), !taken);
        assert_eq!(rig.empty_after(SECOND), SECOND);
    });
}

/// Given a unit that was taken through the word and has flowed out, when it is given back beside two who want one at the same
/// instant, then one of them has one.
#[test]
fn a_unit_that_has_flowed_out_is_not_given_back_beside_another() {
    crate::exhaustive(|| {
        let rig = Rig::opened();
        let held = rig.take(SECOND).unwrap();
        let (other, passed) = (Arc::clone(&rig), Passed::new());
        let pass = passed.clone();
        let thread = thread::spawn(move || {
            other.cancel(held, 2 * SECOND);
            pass.pass();
        });
        passed.or_not();
        let first = rig.take(2 * SECOND).is_some();
        thread.join().unwrap();
        assert!(first && rig.take(2 * SECOND).is_none());
        assert_eq!(rig.empty_after(2 * SECOND), SECOND);
    });
}

/// Given a bucket that is empty, when its rate is doubled and one unit taken, beside a caller that takes a unit two seconds later, then
/// that one counts by one of the two rates, and not by the first although it was taken by the second.
#[test]
fn a_unit_beside_a_change_of_rate_counts_by_one_of_the_two() {
    crate::bounded(3, || {
        let rig = Rig::opened();
        rig.clock.advance(SECOND);
        let (other, passed) = (Arc::clone(&rig), Passed::new());
        let pass = passed.clone();
        let thread = thread::spawn(move || {
            let fast = Quota::per_second(2);
            other.bucket.set_quota(fast, Inherit::AsIs).unwrap();
            let taken = other.take(SECOND).is_some();
            pass.pass();
            taken
        });
        passed.or_not();
        assert!(rig.take(3 * SECOND).is_some());
        // After the later one, whose unit is still there, none fits.
        let there = thread.join().unwrap();
        let left = rig.empty_after(3 * SECOND);
        assert_eq!(left, SECOND / 2, "{there}");
    });
}

/// Given the unit of a bucket that is emptied, when the rate is changed so that another one counts until the same instant, beside
/// a caller that takes a unit later, then that one counts by the rate by which it was taken.
#[test]
fn an_instant_stands_in_the_word_for_one_taking() {
    crate::bounded(3, || {
        let rig = Rig::opened();
        let (other, passed) = (Arc::clone(&rig), Passed::new());
        let pass = passed.clone();
        let thread = thread::spawn(move || {
            other.clock.advance(SECOND / 2);
            other.bucket.set_quota(Quota::per_second(2), Inherit::Reset).unwrap();
            let taken = other.take(SECOND / 2);
            pass.pass();
            taken
        });
        passed.or_not();
        assert!(rig.take(5 * SECOND).is_some());
        thread.join().unwrap();
        assert_eq!(rig.empty_after(5 * SECOND), SECOND / 2);
    });
}
