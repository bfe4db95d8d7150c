//! The map from keys to limiters: which keys stay, which are evicted, and which are refused.

use crate::keyed::program::{self, Op};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;
use tollgate::keyed::Shared;
use tollgate::{
    Ask, Cost, Demand, Description, Inherit, Keyed, Limiter, LimiterExt, ManualClock, Outcome, Policy, Quota, Reason,
    Refusal, Semaphore, SlidingWindow, TokenBucket,
};

const SECOND: Duration = Duration::from_secs(1);

fn buckets(clock: &ManualClock, max: usize, rate: u64, burst: u64) -> Keyed<u64, TokenBucket> {
    let clock = clock.clone();
    Keyed::new(max, move |_: &u64| {
        TokenBucket::new(Quota::per_second(rate).burst(burst)).on(&clock)
    })
}

#[test]
fn each_key_has_a_limiter_of_its_own() {
    let clock = ManualClock::new();
    let map = buckets(&clock, 10, 1, 2);
    assert!(map.get(&1).unwrap().try_acquire(2).is_ok());
    assert!(map.get(&1).unwrap().try_acquire(1).is_err());
    assert!(map.get(&2).unwrap().try_acquire(2).is_ok());
    assert!(Arc::ptr_eq(&map.get(&1).unwrap(), &map.get(&1).unwrap()));
    assert_eq!((map.len(), map.is_empty()), (2, false));
    assert!(map.peek(&3).is_none());
    assert_eq!(map.len(), 2);
}

#[test]
fn a_borrowed_key_finds_what_an_owned_one_made() {
    let map = Keyed::new(10, |route: &String| Semaphore::new(route.len()));
    assert_eq!(map.get("ab").unwrap().limit(), 2);
    assert!(Arc::ptr_eq(
        &map.get(&String::from("ab")).unwrap(),
        &map.peek("ab").unwrap()
    ));
}

/// Keeps out agave#6893, agave#8154, agave#8740.
#[test]
fn a_limited_key_is_never_dropped_and_a_new_one_is_refused() {
    let clock = ManualClock::new();
    let map = buckets(&clock, 2, 1, 2);
    map.get(&1).unwrap().try_acquire(1).unwrap();
    map.get(&2).unwrap().try_acquire(2).unwrap();
    let full = map.get(&3).unwrap_err();
    assert_eq!(full.to_string(), "no room for another key beside 2");
    let refusal = Refusal::from(full);
    assert_eq!((refusal.reason(), refusal.leg()), (Reason::Saturated, "keyed"));
    assert_eq!(refusal.retry_after(), None);

    // The first has its token back: it goes. The second would have gained one by going: it stays.
    clock.advance(SECOND);
    assert!(map.get(&3).is_ok());
    assert!(map.peek(&1).is_none());
    assert!(map.get(&2).unwrap().try_acquire(2).is_err());
    assert_eq!(map.len(), 2);
}

#[test]
fn keys_without_a_place_share_the_overflow() {
    let clock = ManualClock::new();
    let overflow = TokenBucket::new(Quota::per_second(1).burst(3)).on(&clock);
    let map = buckets(&clock, 1, 1, 1).overflow(overflow);
    map.get(&1).unwrap().try_acquire(1).unwrap();
    for key in 2..5 {
        map.get(&key).unwrap().try_acquire(1).unwrap();
    }
    assert!(map.get(&5).unwrap().try_acquire(1).is_err());
    assert!(map.entry(&5).is_err(), "an entry is never the overflow");
    // The overflow is full, and the key's own limiter is fresh: it makes room.
    clock.advance(3 * SECOND);
    map.get(&6).unwrap().try_acquire(1).unwrap();
    assert!(map.peek(&6).is_some());
    assert_eq!(map.len(), 1);
}

#[test]
fn a_map_without_capacity_refuses_every_key() {
    let map = Keyed::new(0, |_: &u64| Semaphore::new(1));
    assert_eq!(map.get(&1).unwrap_err().max_entries, 0);
    let map = map.overflow(Semaphore::new(1));
    assert_eq!(map.get(&1).unwrap().limit(), 1);
    assert!(map.is_empty());
}

/// Given an entry in use, when a new key needs its place, then it stays, however new it looks.
#[test]
fn an_entry_in_use_stays() {
    let map = Keyed::new(1, |_: &u64| Semaphore::new(2));
    let handle = map.get(&1).unwrap();
    assert!(map.get(&2).is_err());
    let permit = handle.try_acquire_owned().unwrap();
    assert!(map.get(&2).is_err());
    assert_eq!(map.peek(&1).unwrap().in_use(), 1);
    drop(permit);
    assert!(map.get(&2).is_ok());

    // A weak handle is one, too.
    let weak = Arc::downgrade(&map.get(&2).unwrap());
    assert!(map.get(&3).is_err());
    drop(weak);
    assert!(map.get(&3).is_ok());
}

#[test]
fn a_forgotten_permit_and_a_changed_limit_are_not_undone_by_dropping() {
    let map = Keyed::new(1, |_: &u64| Semaphore::new(2));
    map.get(&1).unwrap().try_acquire().unwrap().forget();
    assert!(map.get(&2).is_err());
    map.get(&1).unwrap().set_limit(2);
    assert!(map.get(&2).is_ok());
    map.get(&2).unwrap().set_limit(5);
    assert!(map.get(&1).is_err());
    map.get(&2).unwrap().close();
    map.get(&2).unwrap().set_limit(2);
    assert!(map.get(&1).is_err(), "closed stays closed");
    assert!(map.remove(&2).unwrap().is_closed());
    assert!(map.get(&1).is_ok());
}

#[test]
fn a_key_can_have_a_quota_of_its_own_and_lose_it_again() {
    let clock = ManualClock::new();
    let map = buckets(&clock, 2, 1, 1);
    let gold = Quota::per_second(10).burst(10);
    map.entry(&1).unwrap().set_quota(gold, Inherit::Reset);
    assert_eq!(map.get(&1).unwrap().available(), 10);
    map.get(&2).unwrap();
    // It is full and stays nevertheless; the plain one goes.
    map.get(&3).unwrap();
    assert!(map.peek(&2).is_none());
    let held = map.get(&3).unwrap();
    assert!(map.entry(&4).is_err());
    map.remove(&1);
    assert_eq!(map.get(&1).unwrap().quota(), Quota::per_second(1));
    assert!(map.get(&4).is_ok());
    assert!(map.peek(&1).is_none());
    drop(held);
}

/// Keeps out leaky-bucket#35, leaky-bucket#9, leaky-bucket#30.
#[test]
fn a_bucket_unused_for_years_may_be_evicted() {
    let clock = ManualClock::new();
    let map = buckets(&clock, 1, 1_000_000_000, 1_000_000);
    map.get(&1).unwrap().try_acquire(1_000_000).unwrap();
    assert!(map.get(&2).is_err());
    clock.advance(Duration::from_secs(10 * 365 * 86_400));
    assert!(map.get(&2).is_ok());
}

/// Each kind of limiter: fresh when made, not while something is out, and again when all is back.
#[test]
fn limiters_say_when_they_are_as_new() {
    const BYTES: Cost = Cost::new("bytes");
    fn fresh<L: Limiter>(limiter: &L) -> bool {
        let mut as_new = true;
        limiter.describe(&mut |leg| as_new &= leg.is_as_new);
        as_new
    }
    let clock = ManualClock::new();
    let bucket = || TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock);
    let boxed = bucket().named("a").and(Semaphore::new(1).per(BYTES)).boxed();
    let policy = Policy::builder()
        .limit(SlidingWindow::new(1, Duration::from_millis(640)).unwrap().on(&clock))
        .limit(Shared::new(bucket()))
        .on(&clock)
        .build()
        .unwrap();
    assert!(fresh(&boxed) && fresh(&policy));
    let ask = Ask::one().cost(BYTES, 1);
    let permits = (boxed.try_admit(ask).unwrap(), policy.try_admit(ask).unwrap());
    assert!(!fresh(&boxed) && !fresh(&policy));
    clock.advance(Duration::from_millis(650));
    // A shared entry is not asked.
    assert!(!fresh(&boxed) && fresh(&policy));
    clock.advance(SECOND);
    assert!(!fresh(&boxed));
    drop(permits);
    assert!(fresh(&boxed));
    let other_handle = policy.clone();
    assert!(!fresh(&policy));
    drop(other_handle);
    assert!(fresh(&policy));

    let arc = Arc::new(Semaphore::new(1));
    assert!(fresh(&arc) && !fresh(&&*arc));
    let other = Arc::clone(&arc);
    assert!(!fresh(&arc));
    drop(other);
    let weak = Arc::downgrade(&arc);
    assert!(!fresh(&arc));
    drop(weak);
    assert!(fresh(&arc));
}

/// Given a waiter at a key's policy, when a new key needs its place, then that key stays, and so does the waiter's position.
#[test]
fn a_key_with_waiters_stays() {
    let clock = ManualClock::new();
    let for_all = clock.clone();
    let map = Keyed::new(1, move |_: &u64| {
        Policy::new(TokenBucket::new(Quota::per_second(1).burst(1)).on(&for_all))
    });
    clock.run(async {
        let first = map.get(&1).unwrap().admit_owned(1).await.unwrap();
        let handle = map.get(&1).unwrap();
        let mut waits = Box::pin(handle.admit_owned(1));
        assert!(futures::poll!(&mut waits).is_pending());
        assert!(map.get(&2).is_err());
        let second = waits.await.unwrap();
        drop(handle);
        drop((first, second));
        assert!(map.get(&2).is_err(), "the bucket is empty");
        clock.advance(SECOND);
        assert!(map.get(&2).is_ok());
    });
}

#[test]
fn a_key_is_a_leg_beside_others() {
    const BYTES: Cost = Cost::new("bytes");
    let clock = ManualClock::new();
    let map = buckets(&clock, 10, 1, 5);
    let all = Semaphore::new(4);
    let gate = map.get(&1).unwrap().per(BYTES).and(&all);
    let permit = gate.try_admit(Ask::one().cost(BYTES, 4)).unwrap();
    assert_eq!(
        gate.try_admit(Ask::one().cost(BYTES, 2)).unwrap_err().leg(),
        "token_bucket"
    );
    drop(permit);
    let policy = Policy::new(map.get(&2).unwrap());
    clock.run(async {
        drop(policy.admit(5).await.unwrap());
        drop(policy.admit(2).await.unwrap());
        assert_eq!(clock.elapsed(), 2 * SECOND);
    });
}

#[test]
fn all_that_is_fresh_can_be_dropped_at_once() {
    let clock = ManualClock::new();
    let map = buckets(&clock, 100_000, 1, 2);
    for key in 0..5_000 {
        map.get(&key).unwrap().try_acquire(key % 3).unwrap();
    }
    assert_eq!(map.evict_as_new(), 1_667);
    clock.advance(SECOND);
    assert_eq!(map.evict_as_new(), 1_667);
    clock.advance(SECOND);
    assert_eq!((map.evict_as_new(), map.len()), (1_666, 0));
}

/// Given policies that share one semaphore, when one key has many waiters and another a single one, then the single one
/// is served in the next round.
#[test]
fn keys_that_share_a_semaphore_take_turns() {
    let clock = ManualClock::new();
    let all = Shared::new(Semaphore::new(1));
    let (budget, for_all) = (all.clone(), clock.clone());
    let map = Keyed::new(10, move |_: &u64| {
        Policy::builder().on(&for_all).limit(budget.clone()).build().unwrap()
    });
    clock.run(async {
        let handles: Vec<_> = [1, 1, 1, 1, 2, 3, 3]
            .iter()
            .map(|key| (*key, map.get(key).unwrap()))
            .collect();
        let first = all.try_acquire().unwrap();
        let order = std::sync::Mutex::new(Vec::new());
        let mut waits: Vec<_> = handles
            .iter()
            .map(|(key, handle)| {
                let order = &order;
                Box::pin(async move {
                    let permit = handle.admit(1).await.unwrap();
                    order.lock().unwrap().push(*key);
                    permit.finish(tollgate::Outcome::Success);
                })
            })
            .collect();
        for wait in &mut waits {
            assert!(futures::poll!(wait).is_pending());
        }
        drop(first);
        futures::future::join_all(waits).await;
        assert_eq!(*order.lock().unwrap(), [1, 2, 3, 1, 3, 1, 1]);
    });
}

/// Given eight threads that use few keys of a small map beside an attacker who cycles many, then no key is admitted more
/// often than its bucket allows: time stands still.
/// Keeps out agave#9278.
#[test]
fn no_key_regains_a_token_while_threads_race_for_capacity() {
    const KEYS: u64 = 64;
    let clock = ManualClock::new();
    let map = buckets(&clock, 24, 1, 3);
    let admitted: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for seed in 1..=8u64 {
            let (map, admitted, start) = (&map, &admitted, &start);
            scope.spawn(move || {
                start.wait();
                let mut random = seed;
                for _ in 0..5_000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                    let key = (random >> 33) % KEYS;
                    let Ok(bucket) = map.get(&key) else { continue };
                    // Some only look, and leave an entry that may go.
                    if random & 1 == 0 && bucket.try_acquire(1).is_ok() {
                        admitted[key as usize].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(map.len() <= 24);
    for (key, admitted) in admitted.iter().enumerate() {
        assert!(admitted.load(Ordering::Relaxed) <= 3, "key {key}");
    }
}

proptest! {
    #![proptest_config(crate::cases(1_000))]

    /// Given keys that come in any order while time passes, some of them held, removed, or with a quota of their own, then each takes what
    /// a bucket of its own that is never dropped gives; and a key gives way to a new one only when it would come back the same.
    /// Keeps out agave#6893, agave#8154, agave#8740.
    #[test]
    fn a_map_is_a_bucket_for_each_key(
        ops in crate::ops(1..200, Op::decode), max in 0usize..12, overflow in any::<bool>(), siphash in any::<bool>(),
    ) {
        program::run(max, overflow, siphash, ops);
    }
}

/// A key whose comparison panics: the map goes on.
#[test]
fn a_comparison_that_panics_leaves_the_map_usable() {
    #[derive(Clone)]
    struct Key(u64);
    impl std::hash::Hash for Key {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            state.write_u64(7);
        }
    }
    impl PartialEq for Key {
        fn eq(&self, other: &Self) -> bool {
            assert!(self.0 != 13 && other.0 != 13, "an unlucky key");
            self.0 == other.0
        }
    }
    impl Eq for Key {}
    let map = Keyed::new(3, |_: &Key| Semaphore::new(1));
    map.get(&Key(1)).unwrap();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| map.get(&Key(13)).is_ok())).is_err());
    assert!(map.get(&Key(2)).is_ok());
    assert_eq!(map.len(), 2);
}

/// A closure and a limiter that use the map themselves: no lock is held while they run.
#[test]
fn whatever_runs_for_a_key_may_use_the_map() {
    type Map = Keyed<u64, Nosy>;
    struct Nosy(std::sync::Weak<Map>);
    impl Nosy {
        fn use_map(&self) {
            if let Some(map) = self.0.upgrade() {
                assert!(map.len() <= 2);
            }
        }
    }
    impl Drop for Nosy {
        fn drop(&mut self) {
            self.use_map();
        }
    }
    impl Limiter for Nosy {
        type Ticket = ();
        fn try_reserve(&self, _: &Demand<'_>) -> Result<(), Refusal> {
            Ok(())
        }
        fn cancel(&self, (): ()) {}
        fn finish(&self, (): (), _: Outcome) {}
        fn look(&self, _: &Demand<'_>) -> Result<(), Refusal> {
            Ok(())
        }
        fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
            self.use_map();
            visit(Description::new("nosy").as_new(true));
        }
    }
    let map = Arc::new_cyclic(|weak: &std::sync::Weak<Map>| {
        let weak = weak.clone();
        Keyed::new(2, move |_: &u64| {
            let nosy = Nosy(weak.clone());
            nosy.use_map();
            nosy
        })
    });
    for key in 0..10 {
        map.get(&key).unwrap();
    }
    assert_eq!(map.evict_as_new(), 2);
}

/// A visitor may use the map, also for the key that it is given, and an entry that is visited is not dropped.
#[test]
fn a_walk_visits_each_key_once_and_holds_no_lock() {
    let map = Keyed::new(10_000, |_: &u64| TokenBucket::new(Quota::per_hour(1)));
    (0..5_000).for_each(|key| map.get(&key).unwrap().try_acquire(key % 2).unwrap());
    let mut seen = Vec::new();
    map.for_each(|key, bucket| {
        assert!(Arc::ptr_eq(bucket, &map.peek(key).unwrap()));
        if *key < 5_000 {
            assert_eq!(bucket.available(), 1 - key % 2);
        }
        if *key == 7 {
            map.remove(key).unwrap();
            map.get(&9_999).unwrap();
        }
        seen.push(*key);
    });
    seen.retain(|key| *key < 5_000);
    seen.sort_unstable();
    assert_eq!(seen, (0..5_000).collect::<Vec<_>>());
    assert!(map.peek(&7).is_none());
}
