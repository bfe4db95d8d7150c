//! Turns of queues at a limiter that hands nothing over: a rate, whose tokens come by themselves.
//!
//! Each queue that waits there has one position, that of its head. A head is admitted once the heads before it have been; a
//! demand without a position is refused meanwhile. So a queue's head is admitted after at most one head of each other queue,
//! however long that is. A position holds no token: a head that waits for another leg gives it up.

use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicUsize, Ordering};
use crate::sync::wait_queue::{QueueDemand, QueueId, QueueKey, WaitQueue};
use crate::time::{Clock, Instant};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// The time for which a head that is due may keep the others waiting. A head that is not admitted by then loses its position:
/// its queue is not driven.
const LAPSE: Duration = Duration::from_millis(10);

/// The queues that wait at one limiter, each by its head, in order.
#[derive(Default)]
pub(crate) struct Turns {
    /// The number of heads. Written under the lock; read without it as a hint.
    waiting: AtomicUsize,
    heads: Mutex<VecDeque<Head>>,
}

struct Head {
    /// Ascending along the queue.
    key: u64,
    units: u64,
    /// The sum of all units before it, from an arbitrary origin: so the units before it are one difference.
    start: u128,
    /// Shared, so that it can be taken along without running foreign code under the lock.
    waker: Arc<Waker>,
    /// Since when it is known to be first and due.
    late: Option<Instant>,
}

/// The position that counts for a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// It holds none.
    Newcomer,
    /// It holds none, and needs none: it is a head in the queue of a leg that hands over, whose order counts.
    Exempt,
    /// It is the head that holds this one.
    Head(u64),
    /// It waits behind the head that holds this one.
    Behind(u64),
}

/// The heads before a demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// The units that they want together.
    pub(crate) units: u64,
    /// The first of them.
    first: Option<u64>,
    /// The units that the first wants.
    pub(crate) first_units: u64,
    /// The position that the demand counts on is gone.
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

/// The first head before one that is due by now: it has not been admitted.
pub(crate) struct Late {
    /// When it loses its position.
    pub(crate) until: Instant,
    /// Drives its queue.
    pub(crate) waker: Arc<Waker>,
}

/// The units that all heads before `index` want together.
fn before(heads: &VecDeque<Head>, index: usize) -> u64 {
    let front = heads.front().map_or(0, |front| front.start);
    let end = || heads.back().map_or(0, |last| last.start + u128::from(last.units));
    let start = heads.get(index).map_or_else(end, |head| head.start);
    u64::try_from(start - front).unwrap_or(u64::MAX)
}

/// Changes the units of the head at `index`. Those behind it move up or down.
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
        // Relaxed: nothing is published by it. A head that is overlooked finds the tokens taken when it is due.
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn under_lock<R>(&self, change: impl FnOnce(&mut VecDeque<Head>) -> R) -> R {
        let mut heads = self.heads.lock();
        let result = change(&mut heads);
        // Relaxed: see `is_waited`.
        self.waiting.store(heads.len(), Ordering::Relaxed);
        result
    }

    /// The heads before a demand for `units`.
    pub(crate) fn before(&self, holder: Holder, units: u64) -> Before {
        if !self.is_waited() {
            return match holder {
                Holder::Newcomer | Holder::Exempt => Before::NOTHING,
                Holder::Head(_) | Holder::Behind(_) => Before {
                    lapsed: true,
                    ..Before::NOTHING
                },
            };
        }
        let mut heads = self.heads.lock();
        if let Holder::Head(key) = holder {
            if let Ok(index) = heads.binary_search_by_key(&key, |head| head.key) {
                // The position is the queue's, whose head may be another now.
                set_units(&mut heads, index, units);
            }
        }
        let all = || before(&heads, heads.len());
        let front = heads.front().map(|head| head.key);
        let at = |key: u64| heads.binary_search_by_key(&key, |head| head.key);
        let (units, first, lapsed) = match holder {
            Holder::Newcomer => (all(), front, false),
            Holder::Exempt => (0, None, false),
            Holder::Head(key) => match at(key) {
                Ok(0) => (0, None, false),
                Ok(index) => (before(&heads, index), front, false),
                Err(_) => (all(), front, true),
            },
            // A demand behind its own head counts that itself.
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

    /// For a head that is due by `now` behind `before`: the first head, which is late. `None` when it should look again: the first
    /// head has gone, or loses its position by this call.
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

/// A head that was refused takes a position behind all others, and gives it up when it has been admitted, has left, or waits for
/// another leg. Its waker is woken when it has become the first. A head that is the first from the beginning is not woken.
impl WaitQueue for Turns {
    fn join(&self, QueueDemand { units, .. }: QueueDemand<'_>, waker: &Waker) -> QueueKey {
        // Drawn from one counter for all, so that no key is taken for one of an earlier limiter.
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
        if let Some(next) = next {
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
    fn each_position_is_behind_those_that_were_taken_before() {
        let turns = Turns::new();
        let counts = [0, 1, 2].map(|_| Arc::<Count>::default());
        let claims = [0, 1, 2].map(|at| turns.join(QueueDemand::of(1 << at), &Waker::from(Arc::clone(&counts[at]))));
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
    fn a_head_that_is_due_and_not_admitted_in_time_loses_its_position() {
        let (clock, turns) = (ManualClock::new(), Turns::new());
        let claims = [0, 1].map(|_| turns.join(QueueDemand::of(1), Waker::noop()));
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

    /// Given positions that are left in any order and want more and less, then the units before each are the sum of those before it.
    #[test]
    fn the_units_before_a_position_are_the_sum_of_those_before_it() {
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
                None => model.push((turns.join(QueueDemand::of(units), Waker::noop()), units)),
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
