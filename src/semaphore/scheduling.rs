//! The order in which waiters are granted, and the policy of a full queue. Pure bookkeeping of classes; the entries and their
//! links are the queue's.

use std::fmt;

/// The order in which waiters are granted. Classes are numbered from 0; a waiter is of class 0 unless it says otherwise.
///
/// ```
/// # use tollgate::{ManualClock, Order, Semaphore};
/// # use std::cell::RefCell;
/// let order = Order::Priority { classes: 2, patience: 8 };
/// let semaphore = Semaphore::builder(1).order(order).build()?;
/// let (held, granted) = (semaphore.try_acquire(), RefCell::new(Vec::new()));
/// let wait = async |class| {
///     let _permit = semaphore.request(1).class(class).acquire().await;
///     granted.borrow_mut().push(class);
/// };
/// ManualClock::new().run(async { futures::join!(wait(1), wait(0), async { drop(held) }) });
/// assert_eq!(granted.into_inner(), [0, 1]);
/// # Ok::<(), tollgate::SemaphoreError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served, whatever the class.
    #[default]
    Fifo,
    /// Last come, first served, whatever the class: under overload the newest are still in time, and the oldest, given up by
    /// their callers in all likelihood, time out.
    Lifo,
    /// The lowest class first. A class that has been passed over by `patience` grants to others is next; so the head of
    /// any class is granted within `patience + classes - 1` grants.
    Priority {
        /// The number of classes, 1 to [`MAX_CLASSES`](Order::MAX_CLASSES).
        classes: u8,
        /// The grants to others that a class lets pass. At least 1.
        patience: u32,
    },
    /// One grant to each class in turn, whatever its number of permits.
    RoundRobin {
        /// The number of classes, 1 to [`MAX_CLASSES`](Order::MAX_CLASSES).
        classes: u8,
    },
    /// Permits to classes in proportion to these weights, as long as they have waiters: stride scheduling (Waldspurger
    /// and Weihl, 1995). 1 to [`MAX_CLASSES`](Order::MAX_CLASSES) weights, each at least 1.
    Shares(Vec<u32>),
}

impl Order {
    /// The most classes that there can be.
    pub const MAX_CLASSES: u8 = 32;

    /// The number of classes.
    pub fn classes(&self) -> usize {
        match self {
            Self::Fifo | Self::Lifo => 1,
            Self::Priority { classes, .. } | Self::RoundRobin { classes } => usize::from(*classes),
            Self::Shares(weights) => weights.len(),
        }
    }

    /// Checks the number of classes, the patience and the weights.
    pub(crate) fn check(&self) -> Result<(), OrderError> {
        let given = self.classes();
        match self {
            _ if given == 0 || given > usize::from(Self::MAX_CLASSES) => Err(OrderError::Classes { given }),
            Self::Priority { patience: 0, .. } => Err(OrderError::Patience),
            Self::Shares(weights) if weights.contains(&0) => Err(OrderError::Weight),
            _ => Ok(()),
        }
    }
}

/// What is wrong with an [`Order`].
///
/// ```
/// # use tollgate::{Order, OrderError, Semaphore, SemaphoreError};
/// let error = Semaphore::builder(4).order(Order::Shares(vec![6, 0])).build().unwrap_err();
/// assert_eq!(error, SemaphoreError::Order(OrderError::Weight));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderError {
    /// 1 to [`Order::MAX_CLASSES`].
    Classes {
        /// The number given.
        given: usize,
    },
    /// The patience of a priority order is at least 1.
    Patience,
    /// The weights of shares are at least 1.
    Weight,
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Classes { given } => {
                let most = Order::MAX_CLASSES;
                write!(f, "{given} classes were given, and 1 to {most} are allowed")
            }
            Self::Patience => f.write_str("a patience of 0 was given, and at least 1 is allowed"),
            Self::Weight => f.write_str("a weight of 0 was given, and at least 1 is allowed"),
        }
    }
}

impl std::error::Error for OrderError {}

/// The virtual time that one unit of weight 1 adds to its class.
const STRIDE: u128 = 1 << 32;

/// Picks the class that is next.
#[derive(Debug)]
pub(crate) struct Scheduler {
    order: Order,
    classes: Vec<Class>,
    /// The virtual time of the last grant.
    now: u128,
}

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    waiting: usize,
    /// Grants to others since it was granted last, or joined.
    passed: u32,
    /// The units that it has been granted, divided by its weight.
    time: u128,
}

impl Scheduler {
    pub(crate) fn new(order: Order) -> Self {
        Self {
            classes: vec![Class::default(); order.classes()],
            order,
            now: 0,
        }
    }

    /// The class that is next, if any has waiters.
    pub(crate) fn pick(&self) -> Option<usize> {
        let waiting = || self.classes.iter().enumerate().filter(|(_, class)| class.waiting > 0);
        match self.order {
            Order::Fifo | Order::Lifo => waiting().next(),
            Order::Priority { patience, .. } => waiting()
                .filter(|(_, class)| class.passed >= patience)
                .max_by_key(|(_, class)| class.passed)
                .or_else(|| waiting().next()),
            Order::RoundRobin { .. } | Order::Shares(_) => waiting().min_by_key(|(_, class)| class.time),
        }
        .map(|(number, _)| number)
    }

    /// One more of `class` waits.
    pub(crate) fn join(&mut self, class: usize) {
        let now = self.now;
        let class = &mut self.classes[class];
        if class.waiting == 0 {
            // A class saves nothing up while it has no waiters.
            class.time = class.time.max(now);
            class.passed = 0;
        }
        class.waiting += 1;
    }

    /// One of `class` leaves.
    pub(crate) fn leave(&mut self, class: usize) {
        self.classes[class].waiting -= 1;
    }

    /// True if a newcomer of `class` would be next.
    pub(crate) fn would_lead(&mut self, class: usize) -> bool {
        if self.classes[class].waiting > 0 {
            return false;
        }
        self.join(class);
        let leads = self.pick() == Some(class);
        self.leave(class);
        leads
    }

    /// One of `class` is granted `need` units and leaves.
    pub(super) fn grant(&mut self, class: usize, need: u64) {
        self.leave(class);
        self.charge(class, need);
    }

    /// One of `class`, which has left, was granted `need` units.
    pub(crate) fn charge(&mut self, class: usize, need: u64) {
        for other in self.classes.iter_mut().filter(|other| other.waiting > 0) {
            other.passed = other.passed.saturating_add(1);
        }
        self.classes[class].passed = 0;
        let step = match &self.order {
            Order::Shares(weights) => u128::from(need) * STRIDE / u128::from(weights[class]),
            _ => STRIDE,
        };
        self.now = self.classes[class].time;
        // Above all that can be granted in ages: the sum does not overflow.
        self.classes[class].time = self.now.saturating_add(step);
    }

    /// All waiters have left.
    pub(super) fn clear(&mut self) {
        for class in &mut self.classes {
            class.waiting = 0;
        }
    }

    /// True when classes are ranked, the lowest first.
    pub(crate) fn ranks(&self) -> bool {
        matches!(self.order, Order::Priority { .. })
    }
}

/// Which waiter is refused or evicted when the queue is full.
///
/// ```
/// # use tollgate::{Eviction, Semaphore};
/// # use std::pin::pin;
/// # use std::task::{Context, Poll, Waker};
/// let semaphore = Semaphore::builder(0).max_queue(1).eviction(Eviction::Oldest).build().unwrap();
/// let mut cx = Context::from_waker(Waker::noop());
/// let (mut old, mut new) = (pin!(semaphore.acquire()), pin!(semaphore.acquire()));
/// assert!(old.as_mut().poll(&mut cx).is_pending());
/// assert!(new.as_mut().poll(&mut cx).is_pending());
/// let Poll::Ready(Err(error)) = old.poll(&mut cx) else { panic!() };
/// assert!(error.is_evicted());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Eviction {
    /// The newcomer is refused.
    #[default]
    Never,
    /// The oldest waiter of the last class is evicted, and the newcomer waits. None is evicted for a newcomer that could not
    /// wait even alone, nor, in an order by priority, for a newcomer of a later class. A policy is never evicted.
    Oldest,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Grants in order, with every class always waiting.
    fn grants(order: Order, n: usize) -> Vec<usize> {
        let classes = order.classes();
        let mut scheduler = Scheduler::new(order);
        (0..classes).for_each(|class| scheduler.join(class));
        (0..n)
            .map(|_| {
                let class = scheduler.pick().unwrap();
                scheduler.grant(class, 1);
                scheduler.join(class);
                class
            })
            .collect()
    }

    #[test]
    fn classes_take_turns() {
        assert_eq!(grants(Order::RoundRobin { classes: 3 }, 6), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn shares_follow_their_weights() {
        let granted = grants(Order::Shares(vec![6, 3, 1]), 1_000);
        let count = |class| granted.iter().filter(|&&other| other == class).count();
        assert_eq!([count(0), count(1), count(2)], [600, 300, 100]);
    }

    #[test]
    fn a_newcomer_leads_where_its_class_is_next_and_has_no_waiters() {
        let mut scheduler = Scheduler::new(Order::Priority {
            classes: 2,
            patience: 9,
        });
        assert!(scheduler.would_lead(1));
        scheduler.join(1);
        assert!(!scheduler.would_lead(1), "another waiter of its class is before it");
        assert!(scheduler.would_lead(0));
        scheduler.join(0);
        assert!(!scheduler.would_lead(0));
    }

    proptest! {
        /// Given any arrivals, then the head of each class is granted within `patience + classes - 1` grants.
        #[test]
        fn no_class_waits_longer_than_promised(
            classes in 1u8..6, patience in 1u32..9, steps in prop::collection::vec((0u8..6, any::<bool>()), 1..400),
        ) {
            let mut scheduler = Scheduler::new(Order::Priority { classes, patience });
            let mut waiting = vec![0usize; usize::from(classes)];
            let mut since = vec![0u32; usize::from(classes)];
            for (class, grant) in steps {
                let class = usize::from(class % classes);
                if grant {
                    let Some(next) = scheduler.pick() else { continue };
                    scheduler.grant(next, 1);
                    waiting[next] -= 1;
                    for other in 0..waiting.len() {
                        since[other] = if other == next || waiting[other] == 0 { 0 } else { since[other] + 1 };
                        prop_assert!(since[other] < patience + u32::from(classes));
                    }
                } else {
                    scheduler.join(class);
                    waiting[class] += 1;
                }
            }
        }
    }
}
