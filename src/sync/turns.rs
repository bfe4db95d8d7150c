//! Turns at a limiter that hands nothing over: a rate, whose tokens come by themselves.
//!
//! Each queue that waits there has one place, that of its head, and the places have an order. A head is admitted once
//! those before it have been; whatever holds no place is refused meanwhile. So however many wait in one queue, another
//! queue's head is admitted after at most one head of each. A place holds no token: a head that another leg keeps waiting
//! gives its place up.

use super::shim::Mutex;
use super::shim::atomic::{AtomicUsize, Ordering};
use super::wait_queue::{QueueId, QueueKey, WaitQueue};
use crate::time::{Clock, Instant};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// How long a head that is due may keep the others waiting. One that is not admitted by then loses its place: its queue is
/// not driven.
const LAPSE: Duration = Duration::from_millis(10);

/// The queues that wait at one limiter, each by its head, in order.
#[derive(Default)]
pub(crate) struct Turns {
    /// How many there are. Written under the lock; read without it as a hint.
    waiting: AtomicUsize,
    heads: Mutex<VecDeque<Head>>,
}

struct Head {
    /// Ascending along the queue.
    key: u64,
    units: u64,
    /// Where its units begin, where those of all stand one after the other: so that what those before it want is one difference.
    start: u128,
    /// Shared, so that it can be taken along without running foreign code under the lock.
    waker: Arc<Waker>,
    /// Since when it is known to be first and due.
    late: Option<Instant>,
}

/// Whose place counts for a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// It holds none.
    Newcomer,
    /// It holds none, and needs none: it is a head that stands in the queue of a leg that hands over, whose order counts.
    Claimant,
    /// It is the head that holds this one.
    Head(u64),
    /// It waits behind the head that holds this one.
    Behind(u64),
}

/// What stands before a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// What those before it want together.
    pub(crate) units: u64,
    /// The first of them.
    first: Option<u64>,
    /// What that wants.
    pub(crate) first_units: u64,
    /// The place that the demand counts on is gone.
    pub(crate) lapsed: bool,
}

impl Before {
    const NOTHING: Self = Self {
        units: 0,
        first: None,
        first_units: 0,
        lapsed: false,
    };

    /// True when others are admitted first.
    pub(crate) fn is_anything(&self) -> bool {
        self.first.is_some()
    }
}

/// Those who are before one that is due by now, and have not been admitted.
pub(crate) struct Late {
    /// When the first of them loses its place.
    pub(crate) until: Instant,
    /// Drives its queue.
    pub(crate) waker: Arc<Waker>,
}

/// What all before the place at `index` want together.
fn before(heads: &VecDeque<Head>, index: usize) -> u64 {
    let front = heads.front().map_or(0, |front| front.start);
    let end = || heads.back().map_or(0, |last| last.start + u128::from(last.units));
    let start = heads.get(index).map_or_else(end, |head| head.start);
    u64::try_from(start - front).unwrap_or(u64::MAX)
}

/// Changes what the head at `index` wants. Those behind it move up or down.
fn set_units(heads: &mut VecDeque<Head>, index: usize, units: u64) {
    let was = std::mem::replace(&mut heads[index].units, units);
    if was != units {
        for head in heads.iter_mut().skip(index + 1) {
            head.start = head.start - u128::from(was) + u128::from(units);
        }
    }
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// True when some queue waits. A hint: whatever overlooks a head that is just joining is concurrent with it.
    #[inline(always)]
    pub(crate) fn is_waited(&self) -> bool {
        // Relaxed: nothing is published by it. A head that is overlooked finds what was taken when it is due.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn under_lock<R>(&self, change: impl FnOnce(&mut VecDeque<Head>) -> R) -> R {
        let mut heads = self.heads.lock();
        let result = change(&mut heads);
        // Relaxed: see `is_waited`.
        self.waiting.store(heads.len(), Ordering::Relaxed);
        result
    }

    /// What stands before a demand for `units`.
    pub(crate) fn before(&self, holder: Holder, units: u64) -> Before {
        if !self.is_waited() {
            return match holder {
                Holder::Newcomer | Holder::Claimant => Before::NOTHING,
                Holder::Head(_) | Holder::Behind(_) => Before {
                    lapsed: true,
                    ..Before::NOTHING
                },
            };
        }
        let mut heads = self.heads.lock();
        if let Holder::Head(key) = holder
            && let Ok(index) = heads.binary_search_by_key(&key, |head| head.key)
        {
            // The place is the queue's, whose head may be another now.
            set_units(&mut heads, index, units);
        }
        let all = || before(&heads, heads.len());
        let front = heads.front().map(|head| head.key);
        let at = |key: u64| heads.binary_search_by_key(&key, |head| head.key);
        let (units, first, lapsed) = match holder {
            Holder::Newcomer => (all(), front, false),
            Holder::Claimant => (0, None, false),
            Holder::Head(key) => match at(key) {
                Ok(0) => (0, None, false),
                Ok(index) => (before(&heads, index), front, false),
                Err(_) => (all(), front, true),
            },
            // What waits behind its own head counts that itself.
            Holder::Behind(key) => match at(key) {
                Ok(index) => (all().saturating_sub(heads[index].units), front, false),
                Err(_) => (all(), front, true),
            },
        };
        let first_units = heads.front().map_or(0, |head| head.units);
        Before {
            units,
            first,
            first_units,
            lapsed,
        }
    }

    /// One is due by `now` behind `before`. `None` when it should look again: the first of those before it has gone, or has
    /// lost its place by this.
    pub(crate) fn late(&self, before: Before, now: Instant, clock: &Clock) -> Option<Late> {
        let lapse = clock.ticks_of(LAPSE);
        let (late, _lapsed) = self.under_lock(|heads| {
            let Some(front) = heads.front_mut().filter(|head| Some(head.key) == before.first) else {
                return (None, None);
            };
            let since = *front.late.get_or_insert(now);
            if now.ticks_since(since) >= lapse {
                return (None, heads.pop_front());
            }
            let late = Late {
                until: since.after_ticks(lapse),
                waker: Arc::clone(&front.waker),
            };
            (Some(late), None)
        });
        late
    }
}

/// A place is taken by a head that was refused, behind all others, and given up when the head has been admitted, has left,
/// or waits for another leg. The waker is woken when the place has become the first; one that is the first from the
/// beginning is not.
impl WaitQueue for Turns {
    fn join(&self, units: u64, waker: &Waker) -> QueueKey {
        // Drawn from one counter for all, so that no place is taken for that of a limiter that was there before.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let waker = Arc::new(waker.clone());
        let key = self.under_lock(|heads| {
            // Relaxed: only that no number comes twice. Under the lock, so that they ascend.
            let key = NEXT.fetch_add(1, Ordering::Relaxed);
            let start = heads.back().map_or(0, |last| last.start + u128::from(last.units));
            heads.push_back(Head {
                key,
                units,
                start,
                waker,
                late: None,
            });
            key
        });
        QueueKey::new(QueueId::of(self), key)
    }

    fn leave(&self, claim: QueueKey) {
        let (_left, next) = self.under_lock(|heads| {
            let Ok(index) = heads.binary_search_by_key(&claim.key(), |head| head.key) else {
                return (None, None);
            };
            // Those behind it close up. Where it is the first, they need not.
            if index > 0 {
                set_units(heads, index, 0);
            }
            let left = heads.remove(index);
            let next = heads.front().filter(|_| index == 0);
            (left, next.map(|head| Arc::clone(&head.waker)))
        });
        if let Some(next) = next
            && !seeded!("turns_leave_quietly")
        {
            next.wake_by_ref();
        }
    }

    fn holds_nothing(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::ManualClock;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(std::sync::atomic::AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn each_place_is_behind_those_that_were_taken_before() {
        let turns = Turns::new();
        let counts = [0, 1, 2].map(|_| Arc::<Count>::default());
        let claims = [0, 1, 2].map(|at| turns.join(1 << at, &Waker::from(Arc::clone(&counts[at]))));
        let woken = || counts.each_ref().map(|count| count.0.load(Ordering::SeqCst));
        let before = |at: usize| turns.before(Holder::Head(claims[at].key()), 1 << at);
        assert_eq!([0, 1, 2].map(|at| before(at).units), [0, 1, 3]);
        assert_eq!(turns.before(Holder::Newcomer, 1).units, 7);
        // A waiter behind its own head counts that itself.
        assert_eq!(turns.before(Holder::Behind(claims[1].key()), 1).units, 5);
        assert_eq!((before(0).is_anything(), before(1).is_anything()), (false, true));
        turns.leave(claims[1]);
        assert_eq!((woken(), before(2).units), ([0, 0, 0], 1));
        turns.leave(claims[0]);
        assert_eq!((woken(), before(2).units), ([0, 0, 1], 0));
        turns.leave(claims[0]);
        turns.leave(claims[2]);
        assert_eq!((woken(), turns.is_waited()), ([0, 0, 1], false));
        assert!(turns.before(Holder::Head(claims[2].key()), 1).lapsed);
    }

    #[test]
    fn a_head_that_is_due_and_not_admitted_in_time_loses_its_place() {
        let (clock, turns) = (ManualClock::new(), Turns::new());
        let claims = [0, 1].map(|_| turns.join(1, Waker::noop()));
        let late = || turns.late(turns.before(Holder::Newcomer, 1), clock.now(), &clock);
        let until = late().unwrap().until;
        assert_eq!(clock.between(clock.now(), until), LAPSE);
        clock.advance(LAPSE - Duration::from_nanos(1));
        assert_eq!(late().unwrap().until, until);
        clock.advance(Duration::from_nanos(1));
        assert!(late().is_none());
        // The next has as long.
        assert!(turns.before(Holder::Head(claims[0].key()), 1).lapsed);
        assert_eq!(clock.between(clock.now(), late().unwrap().until), LAPSE);
        assert!(!turns.before(Holder::Head(claims[1].key()), 1).is_anything());
    }

    /// Given places that are left in any order and want more and less, then what stands before each is the sum of those before it.
    #[test]
    fn what_stands_before_a_place_is_the_sum_of_those_before_it() {
        let turns = Turns::new();
        let mut model: Vec<(QueueKey, u64)> = Vec::new();
        let mut draw = 1_u64;
        for _ in 0..2_000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (at, units) = ((draw >> 33) as usize % 7, draw >> 60);
            match model.get_mut(at) {
                Some((claim, wants)) if draw >> 40 & 1 == 0 => {
                    *wants = units;
                    turns.before(Holder::Head(claim.key()), units);
                }
                Some(_) => turns.leave(model.remove(at).0),
                None => model.push((turns.join(units, Waker::noop()), units)),
            }
            let mut sum = 0;
            for &(claim, wants) in &model {
                assert_eq!(turns.before(Holder::Head(claim.key()), wants).units, sum);
                sum += wants;
                let behind = turns.before(Holder::Behind(claim.key()), 0).units;
                assert_eq!(behind, model.iter().map(|(_, wants)| wants).sum::<u64>() - wants);
            }
            assert_eq!(turns.before(Holder::Newcomer, 1).units, sum);
        }
    }
}
