//! Future reservations: units that are taken now for a later start, and the promises that this makes.
//!
//! Every future reservation keeps its promised instant. When an earlier reservation is cancelled, its units go to the
//! next caller, who may then start beside the promised ones. That is allowed as long as a bucket with these units in it
//! would not have been full before the promised instant. The amount that would still fit is the *room* of a promise,
//! and reservations before it give back no more than that. The rest waits until the promises in its way have been
//! cancelled themselves. Once those have begun, it would have overflowed.
//!
//! So no span ever has more than its bound of the reservations that are kept, by the instants at which they start. And
//! a bucket is left as those alone would have left one that is never more than full.

use crate::core::limiter::Limiter;
use crate::core::permit::{Permit, Reservation};
use crate::time::{Clock, Instant};
use std::fmt;
use std::iter::once;
use std::time::Duration;

/// Units that are taken now, for work that starts later. Dropping it gives them back, as a [`Reservation`] does.
///
/// **Over-admission**: the instant is not enforced. Work that starts earlier breaks the rate.
///
/// ```
/// # use tollgate::{ManualClock, Quota, TokenBucket};
/// # use std::time::Duration;
/// let clock = ManualClock::new();
/// let bucket = TokenBucket::new(Quota::per_second(2)).on(&clock);
/// bucket.try_acquire(2).unwrap();
/// let booked = bucket.book(1).unwrap();
/// assert_eq!(booked.wait(), Duration::from_millis(500));
/// clock.advance_to(booked.start());
/// let permit = booked.commit();
/// # drop(permit);
/// ```
#[must_use = "dropping a booking cancels it"]
pub struct FutureReservation<'a, L: Limiter> {
    reservation: Reservation<&'a L>,
    clock: &'a Clock,
    made: Instant,
    start: Instant,
}

impl<'a, L: Limiter> FutureReservation<'a, L> {
    pub(super) fn new(limiter: &'a L, ticket: L::Ticket, clock: &'a Clock, made: Instant, start: Instant) -> Self {
        Self {
            reservation: Reservation::new(limiter, ticket),
            clock,
            made,
            start: start.max(made),
        }
    }

    /// When the work may start.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// The wait at the time of the booking, rounded up to a nanosecond.
    pub fn wait(&self) -> Duration {
        self.clock.between(self.made, self.start)
    }

    /// Starts the work.
    pub fn commit(self) -> Permit<&'a L> {
        self.reservation.commit()
    }
}

impl<L: Limiter> fmt::Debug for FutureReservation<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutureReservation")
            .field("wait", &self.wait())
            .finish_non_exhaustive()
    }
}

/// How many promises are kept apart. Beyond that each two neighbours count as one, with the room of the fuller: so less
/// is given back, never more.
const MAX_PROMISES: usize = 256;
/// How many refunds wait; beyond that the oldest are forgotten.
const MAX_WITHHELD: usize = 64;

/// A reservation's place in the order of taking.
pub(super) trait TakeOrder: Copy {
    /// True if it was taken before `other`, or if the order is unknown.
    fn is_before(&self, other: &Self) -> bool;
}

#[derive(Debug)]
struct Promise<T> {
    /// The newest of the reservations that it stands for.
    by: T,
    /// The latest of their instants.
    start: u64,
    /// The least of their rooms.
    room: u128,
    alone: bool,
}

/// The promises that have not begun. Instants are ticks; amounts are in the owner's unit. An empty one takes one word.
#[derive(Debug)]
pub(super) struct Promises<T>(Option<Box<Lists<T>>>);

/// Both lists are in order of taking.
#[derive(Debug)]
struct Lists<T> {
    promises: Vec<Promise<T>>,
    /// Refunds that wait.
    withheld: Vec<(T, u128)>,
}

impl<T> Promises<T> {
    pub(super) const EMPTY: Self = Self(None);
}

impl<T: TakeOrder> Promises<T> {
    /// True if no promise is outstanding.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Forgets the promises that have begun at `now`; with the last of them, the refunds that would have overflowed by
    /// then.
    #[inline]
    pub(super) fn expire(&mut self, now: u64) {
        if let Some(lists) = &mut self.0 {
            lists.promises.retain(|promise| promise.start > now);
            if lists.promises.is_empty() {
                *self = Self::EMPTY;
            }
        }
    }

    /// Promises `start` to the newest reservation. Before then a bucket that held `room` more would not have been full.
    pub(super) fn add(&mut self, by: T, start: u64, room: u128) {
        let lists = self.0.get_or_insert_with(|| {
            Box::new(Lists {
                promises: Vec::new(),
                withheld: Vec::new(),
            })
        });
        if lists.promises.len() == MAX_PROMISES {
            lists.halve();
        }
        lists.promises.push(Promise {
            by,
            start,
            room,
            alone: true,
        });
    }

    /// A reservation is cancelled. Returns its `amount`, and, if it was promised an instant, all refunds that may have
    /// waited for it. Each is to be [released](Self::release) in turn: the oldest comes first, since it overflows
    /// first.
    pub(super) fn cancel(&mut self, by: T, amount: u128) -> impl Iterator<Item = (T, u128)> + use<T> {
        let mut older = self.freed_by(&by);
        let newer = older.split_off(older.partition_point(|(other, _)| other.is_before(&by)));
        older.into_iter().chain(once((by, amount))).chain(newer)
    }

    fn freed_by(&mut self, by: &T) -> Vec<(T, u128)> {
        let Some(lists) = &mut self.0 else { return Vec::new() };
        let same = |promise: &Promise<T>| !promise.by.is_before(by) && !by.is_before(&promise.by);
        match lists.promises.iter().position(|promise| promise.alone && same(promise)) {
            Some(at) => {
                lists.promises.remove(at);
                std::mem::take(&mut lists.withheld)
            }
            None => Vec::new(),
        }
    }

    /// How much of `amount` the reservation `by` may refund, given the promises after it. Their rooms shrink by it.
    #[inline]
    pub(super) fn allow(&mut self, by: &T, amount: u128) -> u128 {
        let Some(lists) = &mut self.0 else { return amount };
        let later = lists.promises.partition_point(|promise| !by.is_before(&promise.by));
        let later = &mut lists.promises[later..];
        let room = later.iter().map(|promise| promise.room).min();
        let allowed = room.map_or(amount, |room| amount.min(room));
        later
            .iter_mut()
            .for_each(|promise| promise.room = promise.room.saturating_sub(allowed));
        allowed
    }

    /// The same; the rest waits until a promise is cancelled.
    #[inline]
    pub(super) fn release(&mut self, by: T, amount: u128) -> u128 {
        let allowed = self.allow(&by, amount);
        if let Some(lists) = self.0.as_mut().filter(|_| allowed < amount) {
            if lists.withheld.len() == MAX_WITHHELD {
                lists.withheld.remove(0);
            }
            let at = lists.withheld.partition_point(|(other, _)| other.is_before(&by));
            lists.withheld.insert(at, (by, amount - allowed));
        }
        allowed
    }

    /// The limit changes: earlier reservations refund no more below the promises made so far.
    pub(super) fn freeze(&mut self) {
        if let Some(lists) = &mut self.0 {
            lists.promises.iter_mut().for_each(|promise| promise.room = 0);
            lists.withheld.clear();
        }
    }
}

impl<T: Copy> Lists<T> {
    fn halve(&mut self) {
        let mut promises = std::mem::take(&mut self.promises).into_iter();
        while let Some(older) = promises.next() {
            self.promises.push(match promises.next() {
                None => older,
                Some(newer) => Promise {
                    by: newer.by,
                    start: older.start.max(newer.start),
                    room: older.room.min(newer.room),
                    alone: false,
                },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl TakeOrder for u64 {
        fn is_before(&self, other: &Self) -> bool {
            self < other
        }
    }

    fn ahead(promises: &[(u64, u64, u128)]) -> Promises<u64> {
        let mut ahead = Promises::EMPTY;
        for &(by, start, room) in promises {
            ahead.add(by, start, room);
        }
        ahead
    }

    fn promises(ahead: &Promises<u64>) -> usize {
        ahead.0.as_ref().map_or(0, |lists| lists.promises.len())
    }

    /// A promise as a list keeps it: who made it, when it begins, its room, and what was given back before it.
    #[derive(Clone, Debug)]
    struct Kept {
        by: u64,
        start: u64,
        room: u128,
        given: u128,
    }

    /// Given promises that are made, begin and are cancelled, and refunds in any order, then a refund gives all that every later promise
    /// has left, and no more; what it does not give waits, in order, and comes with the cancel of any promise. A crowd of promises
    /// gives back less, and never more.
    #[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
    #[test]
    fn a_refund_is_what_all_later_promises_leave() {
        crate::laws::holds([3, 4], |inputs| {
            let (mut kept, mut waits) = (Vec::<Kept>::new(), Vec::<(u64, u128)>::new());
            let (mut now, mut next) = (inputs.number(1 << 40, 0), 1);
            let crowd = inputs.number(300, 0);
            let mut promises = Promises::EMPTY;
            let promise = |promises: &mut Promises<u64>, kept: &mut Vec<Kept>, next: &mut u64, start, room| {
                promises.add(*next, start, room);
                let (by, given) = (*next, 0);
                kept.push(Kept { by, start, room, given });
                *next += 2;
            };
            for place in 0..crowd {
                promise(&mut promises, &mut kept, &mut next, now + 1 + place % 7 * 100_000, 3);
            }
            while inputs.goes_on() {
                // Takes between promises have even numbers.
                let by = inputs.number(next + 1, next.min(3));
                let amount = u128::from(inputs.number(1 << 40, 2));
                let left = |kept: &[Kept], by: u64| {
                    let later = kept.iter().filter(|promise| promise.by > by);
                    later
                        .map(|promise| promise.room - promise.given)
                        .min()
                        .unwrap_or(u128::MAX)
                };
                let give = |kept: &mut [Kept], by: u64, amount: u128, given: u128| {
                    let most = amount.min(left(kept, by));
                    assert!(
                        given <= most && (given == most || crowd > 200),
                        "{given} of {amount}: {kept:?}"
                    );
                    kept.iter_mut()
                        .filter(|promise| promise.by > by)
                        .for_each(|promise| promise.given += given);
                    amount - given
                };
                match inputs.below(6) {
                    0 => {
                        let start = now + 1 + inputs.number(1 << 20, 1);
                        promise(&mut promises, &mut kept, &mut next, start, amount);
                    }
                    1 => {
                        let given = promises.allow(&by, amount);
                        give(&mut kept, by, amount, given);
                    }
                    2 if waits.len() < 64 => {
                        let is_any = !promises.is_empty();
                        let given = promises.release(by, amount);
                        let rest = give(&mut kept, by, amount, given);
                        if rest > 0 {
                            assert!(is_any);
                            let at = waits.iter().filter(|(other, _)| *other < by).count();
                            waits.insert(at, (by, rest));
                        }
                    }
                    3 => {
                        now += inputs.number(1 << 20, 2);
                        promises.expire(now);
                        kept.retain(|promise| promise.start > now);
                        if promises.is_empty() {
                            assert!(kept.is_empty());
                            waits.clear();
                        }
                        assert!(crowd > 200 || promises.is_empty() == kept.is_empty());
                    }
                    4 => {
                        let which = kept.iter().position(|promise| promise.by == by);
                        let freed: Vec<_> = promises.cancel(by, amount).collect();
                        let mut all = std::mem::take(&mut waits);
                        let at = all.iter().filter(|(other, _)| *other < by).count();
                        all.insert(at, (by, amount));
                        let is_told_apart = which.is_some() && (crowd <= 200 || freed.len() > 1);
                        if is_told_apart {
                            assert_eq!(freed, all);
                        } else {
                            assert_eq!(freed, [all.remove(at)]);
                            waits = all;
                        }
                        which.map(|at| kept.remove(at));
                    }
                    _ => {
                        promises.freeze();
                        kept.iter_mut().for_each(|promise| promise.given = promise.room);
                        waits.clear();
                    }
                }
                let remembered = promises.0.as_ref().map_or(0, |lists| lists.promises.len());
                assert!(remembered <= MAX_PROMISES, "{remembered}");
            }
        });
    }

    #[test]
    fn only_later_promises_limit_a_refund() {
        let mut ahead = ahead(&[(10, 100, 5), (20, 200, 3)]);
        assert_eq!([ahead.allow(&20, 9), ahead.allow(&30, 9)], [9, 9]);
        assert_eq!([ahead.allow(&10, 9), ahead.allow(&10, 9)], [3, 0]);
        // The first has not begun yet: the refund of the second lies behind it.
        ahead.expire(200);
        assert_eq!(ahead.allow(&5, 9), 9, "both have begun");
    }

    #[test]
    fn each_refund_counts_against_all_later_promises() {
        let mut ahead = ahead(&[(10, 100, 5), (20, 200, 8)]);
        assert_eq!([ahead.allow(&5, 4), ahead.allow(&15, 9), ahead.allow(&5, 9)], [4, 4, 0]);
        ahead.expire(99);
        assert_eq!(ahead.allow(&5, 9), 0);
        ahead.expire(100);
        assert_eq!(
            [ahead.allow(&5, 9), ahead.allow(&25, 9)],
            [0, 9],
            "the second is left, and full"
        );
    }

    fn cancel(ahead: &mut Promises<u64>, by: u64, amount: u128) -> Vec<(u64, u128)> {
        ahead.cancel(by, amount).collect()
    }

    #[test]
    fn a_cancelled_promise_releases_the_refunds_that_waited_for_it() {
        let mut ahead = ahead(&[(10, 100, 5), (20, 200, 3)]);
        assert_eq!([ahead.release(15, 2), ahead.release(5, 7)], [2, 1]);
        assert_eq!(ahead.release(15, 3), 0);
        assert_eq!(cancel(&mut ahead, 17, 9), [(17, 9)], "it was not promised anything");
        let waiting = cancel(&mut ahead, 20, 1);
        assert_eq!(waiting, [(5, 6), (15, 3), (20, 1)], "the oldest first");
        let back: Vec<u128> = waiting.into_iter().map(|(by, rest)| ahead.release(by, rest)).collect();
        assert_eq!(back, [4, 3, 1], "of the first two have to wait for the other promise");
        assert_eq!(cancel(&mut ahead, 10, 1), [(5, 2), (10, 1)]);
        assert_eq!(ahead.release(5, 2), 2);
    }

    #[test]
    fn a_promise_that_has_begun_releases_nothing() {
        let mut ahead = ahead(&[(10, 100, 0)]);
        assert_eq!(ahead.release(5, 7), 0);
        ahead.expire(100);
        ahead.add(20, 300, 0);
        assert_eq!(cancel(&mut ahead, 20, 1), [(20, 1)]);
    }

    #[test]
    fn after_a_change_nothing_is_refunded_below_a_promise() {
        let mut ahead = ahead(&[(10, 100, 5), (20, 200, 3)]);
        assert_eq!(ahead.release(5, 7), 3);
        ahead.freeze();
        assert_eq!([ahead.allow(&15, 1), ahead.allow(&20, 1)], [0, 1]);
        assert_eq!(cancel(&mut ahead, 20, 1), [(20, 1)]);
    }

    /// Of too many promises two count as one: a reservation in a pair, or before it, refunds by the fuller of both
    /// until the later of both has begun.
    #[test]
    fn too_many_promises_refund_less_and_never_more() {
        let mut ahead = Promises::EMPTY;
        for by in 0..=MAX_PROMISES as u64 {
            ahead.add(by, 1_000 - by % 2, u128::from(10 + by % 2 * 10));
        }
        assert_eq!(promises(&ahead), MAX_PROMISES / 2 + 1);
        assert_eq!(
            (cancel(&mut ahead, 1, 0).len(), promises(&ahead)),
            (1, MAX_PROMISES / 2 + 1)
        );
        ahead.expire(999);
        let newest = MAX_PROMISES as u64;
        assert_eq!([ahead.allow(&newest, 99), ahead.allow(&(newest - 1), 4)], [99, 4]);
        assert_eq!(ahead.allow(&0, 99), 6, "the newest has six left");
        let Some(lists) = &ahead.0 else {
            unreachable!("the newest is left")
        };
        assert_eq!(lists.promises[0].room, 4);
        // As many again find room.
        for by in 1..2 * MAX_PROMISES as u64 {
            ahead.add(newest + by, 2_000, 1);
            assert!(promises(&ahead) <= MAX_PROMISES);
        }
    }

    #[test]
    fn of_too_many_waiting_refunds_the_oldest_is_forgotten() {
        let mut ahead = ahead(&[(1_000, 100, 0)]);
        for by in 0..=MAX_WITHHELD as u64 {
            assert_eq!(ahead.release(by, 1), 0);
        }
        let waiting = cancel(&mut ahead, 1_000, 0);
        assert_eq!((waiting.len(), waiting[0]), (MAX_WITHHELD + 1, (1, 1)));
    }
}
