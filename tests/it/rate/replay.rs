//! The tokens that cancels leave in a bucket, beside a replay of the kept reservations: never more, and less by no more than
//! stated.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::time::ClockReading;
use tollgate::{Ask, Demand, Instant, Limiter, ManualClock, Quota, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);
/// Nanoseconds that one token takes.
const NANOS: i64 = 100;

type Ticket = <TokenBucket as Limiter>::Ticket;

/// Reserves by a reading of the clock of its own.
fn take(bucket: &TokenBucket, clock: &ManualClock, at: Instant, n: u64) -> Option<Ticket> {
    let (ask, reading) = (Ask::many(n), ClockReading::at(clock, at));
    bucket.try_reserve(&Demand::new(&ask, &reading)).ok()
}

/// Given one of ten and then five, when the one is given back after two seconds, then nothing comes back where a replay has
/// one: two have come, where there was room for none. Within the time of that room all comes back.
#[test]
fn a_replay_has_more_by_the_tokens_that_overflowed_before_it() {
    for (room, seconds, back) in [(0, 2, 0), (0, 0, 1), (1, 2, 0), (2, 2, 1), (1, 1, 1)] {
        let clock = ManualClock::new();
        let bucket = TokenBucket::new(Quota::per_second(1).burst(10)).on(&clock);
        bucket.try_acquire(room).unwrap();
        let held = take(&bucket, &clock, clock.now(), 1).unwrap();
        bucket.try_acquire(5).unwrap();
        clock.advance(SECOND * seconds);
        let before = bucket.available();
        bucket.cancel(held);
        assert_eq!(bucket.available() - before, back, "{room} and {seconds}");
    }
}

/// Given five and five of ten, of which the first are given back and, after three seconds, taken by another, so that as much has
/// been taken as when the second were, then these give back two: without them it would have been full when the other came.
#[test]
fn a_bucket_that_looks_untouched_may_have_been_full() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(1).burst(10)).on(&clock);
    let [first, second] = [5, 5].map(|n| take(&bucket, &clock, clock.now(), n).unwrap());
    bucket.cancel(first);
    clock.advance(SECOND * 3);
    bucket.try_acquire(5).unwrap();
    assert_eq!(bucket.available(), 3);
    bucket.cancel(second);
    assert_eq!(bucket.available(), 5);
}

#[derive(Clone, Copy, Debug)]
enum Plan {
    Advance(i64),
    /// A number of tokens, by a reading of that age.
    Take(u64, i64),
    /// One of those that are held.
    Cancel(usize),
}

fn plan() -> impl Strategy<Value = Plan> {
    let old = prop_oneof![2 => Just(0), 1 => 0i64..600];
    prop_oneof![
        3 => prop_oneof![0i64..60, 0i64..900].prop_map(Plan::Advance),
        4 => (1u64..7, old).prop_map(|(n, old)| Plan::Take(n, old)),
        3 => (0usize..9).prop_map(Plan::Cancel),
    ]
}

/// One that was admitted: at which instant, by its own reading, and how much, in nanoseconds of refill.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: i64,
    units: i64,
    kept: bool,
}

/// What the kept reservations leave, of what has come until `now`.
fn replay(entries: &[Entry], full: i64, now: i64) -> i64 {
    let kept = entries.iter().filter(|entry| entry.kept);
    let position = kept.fold(i64::MIN / 2, |position, entry| {
        position.max(entry.at - full) + entry.units
    });
    now - position.max(now - full)
}

/// How much fuller than full the worst span would have to start.
fn excess(entries: &[Entry], full: i64) -> i64 {
    let mut kept: Vec<_> = entries.iter().filter(|entry| entry.kept).collect();
    kept.sort_by_key(|entry| entry.at);
    let mut worst = 0;
    for (index, first) in kept.iter().enumerate() {
        let mut sum = 0;
        for last in &kept[index..] {
            sum += last.units;
            worst = worst.max(sum - full - (last.at - first.at));
        }
    }
    worst
}

proptest! {
    #![proptest_config(crate::cases(1_500))]

    /// Given reservations by readings of any age, and cancels in any order, then no span of the instants by which the kept ones
    /// were admitted exceeds its bound; there is never more than a replay of them leaves; and less only by what
    /// cancels have lost that came late: each at most by what was refilled and given back since beyond the room before its
    /// reservation, and each old reading by its age. So it is the same where none came late.
    /// Keeps out go#56924, go#69419.
    #[test]
    fn a_cancel_leaves_no_more_than_a_replay_and_less_only_where_it_comes_late(
        plans in prop::collection::vec(plan(), 1..60), burst in 1u64..12,
    ) {
        let clock = ManualClock::new();
        let quota = Quota::new(1, Duration::from_nanos(NANOS as u64)).unwrap().burst(burst);
        let bucket = TokenBucket::new(quota).on(&clock);
        clock.advance(SECOND);
        let full = burst as i64 * NANOS;
        let instant = |nanos: i64| clock.after(Instant::ZERO, Duration::from_nanos(nanos as u64));
        let (mut entries, mut held, mut now) = (Vec::<Entry>::new(), Vec::new(), SECOND.as_nanos() as i64);
        let (mut lost, mut given) = (0, 0);
        for plan in plans {
            match plan {
                Plan::Advance(step) => {
                    clock.advance(Duration::from_nanos(step as u64));
                    now += step;
                }
                Plan::Take(n, old) => {
                    let at = now - old;
                    if let Some(ticket) = take(&bucket, &clock, instant(at), n) {
                        held.push((ticket, entries.len(), given));
                        // A cancelled reservation with a later reading has spent what came until then.
                        lost += old;
                        entries.push(Entry { at, units: n as i64 * NANOS, kept: true });
                    }
                }
                Plan::Cancel(index) if index < held.len() => {
                    let (ticket, index, given_before) = held.remove(index);
                    bucket.cancel(ticket);
                    entries[index].kept = false;
                    let at = entries[index].at;
                    let room = full - replay(&entries[..index], full, at).min(full);
                    lost += (now - at + given - given_before - room).clamp(0, entries[index].units);
                    given += entries[index].units;
                }
                Plan::Cancel(_) => {}
            }
            let ours = bucket.available() as i64 * NANOS;
            let alone = replay(&entries, full, now).max(0);
            prop_assert!(ours <= alone, "{ours} of {alone}: {entries:?}");
            prop_assert!(ours + NANOS > alone - lost, "{ours} of {alone}, and {lost} lost: {entries:?}");
            prop_assert!(excess(&entries, full) <= 0, "{entries:?}");
        }
    }
}
