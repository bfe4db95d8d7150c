//! The order in which the waiters of a policy are served: pure bookkeeping of classes.

use crate::core::ask::Ask;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The order in which a policy serves its waiters. A waiter is of the [class](crate::Ask::class) that its request names, 0 unless set.
///
/// ```
/// # use tollgate::{Ask, ManualClock, Order, Policy, Semaphore};
/// # use std::cell::RefCell;
/// let clock = ManualClock::new();
/// let order = Order::Priority { classes: 2, patience: 8 };
/// let policy = Policy::builder().limit(Semaphore::new(1)).order(order).on(&clock).build()?;
/// let served = RefCell::new(Vec::new());
/// let call = async |class| {
///     let _permit = policy.admit(Ask::one().class(class)).await.unwrap();
///     served.borrow_mut().push(class);
/// };
/// clock.run(async {
///     let held = policy.admit(1).await.unwrap();
///     futures::join!(call(1), call(0), async { drop(held) })
/// });
/// assert_eq!(served.into_inner(), [0, 1]);
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served, whatever the class.
    #[default]
    Fifo,
    /// Last come, first served, whatever the class. Under overload the newest are still in time, and the oldest, whose callers have
    /// probably given up, time out. A newcomer is admitted on the spot where that is possible.
    Lifo,
    /// The lowest class first. A class that was passed over by `patience` admissions of others is next; so the head of any class
    /// is served within `patience + classes - 1` admissions.
    Priority {
        /// The number of classes, 1 to [`MAX_CLASSES`](Order::MAX_CLASSES). A class beyond the last counts as the last.
        classes: u8,
        /// The admissions of others that a class lets pass. At least 1.
        patience: u32,
    },
    /// One admission for each class in turn, whatever its number of units. A class that gets its first waiter is last in turn, and so is
    /// one that was served. So the head of a class is served after at most one admission of each other class that has waiters.
    /// A class is any number: a hash of a tenant's name, say. Only classes with waiters take memory.
    RoundRobin,
    /// Units to classes in proportion to these weights, as long as they have waiters: start-time fair queueing (Goyal, Vin and Cheng,
    /// 1996). 1 to [`MAX_CLASSES`](Order::MAX_CLASSES) weights, each at least 1. A class beyond the last counts as the last.
    Shares(Vec<u32>),
}

impl Order {
    /// The most classes of [`Priority`](Self::Priority) and [`Shares`](Self::Shares).
    pub const MAX_CLASSES: u8 = 32;

    /// Checks the number of classes, the patience and the weights.
    pub(crate) fn check(&self) -> Result<(), OrderError> {
        let given = match self {
            Self::Fifo | Self::Lifo | Self::RoundRobin => 1,
            Self::Priority { classes, .. } => usize::from(*classes),
            Self::Shares(weights) => weights.len(),
        };
        match self {
            _ if given == 0 || given > usize::from(Self::MAX_CLASSES) => Err(OrderError::Classes { given }),
            Self::Priority { patience: 0, .. } => Err(OrderError::Patience),
            Self::Shares(weights) if weights.contains(&0) => Err(OrderError::Weight),
            _ => Ok(()),
        }
    }

    /// The class that `ask` waits in.
    pub(super) fn class_of(&self, ask: &Ask) -> u64 {
        let below = |classes: usize| ask.class_number().min(classes as u64 - 1);
        match self {
            Self::Fifo | Self::Lifo => 0,
            Self::Priority { classes, .. } => below(usize::from(*classes)),
            Self::RoundRobin => ask.class_number(),
            Self::Shares(weights) => below(weights.len()),
        }
    }
}

/// What happens to a newcomer when the queue of a policy is full.
///
/// ```
/// # use tollgate::{Eviction, Policy, Semaphore};
/// let policy = Policy::builder().limit(Semaphore::new(4)).max_queue(100).eviction(Eviction::Oldest).build()?;
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[non_exhaustive]
pub enum Eviction {
    /// The newcomer is refused.
    #[default]
    Never,
    /// The oldest waiter is refused instead. By [`Order::Priority`] that of the last class, and never for a newcomer of a later class. By
    /// [`Order::RoundRobin`] and [`Order::Shares`] that of the class with the most waiters, which takes a look at each class with waiters.
    Oldest,
}

/// What is wrong with an [`Order`].
///
/// ```
/// # use tollgate::{Order, OrderError, Policy, PolicyError, Semaphore};
/// let error = Policy::builder().limit(Semaphore::new(4)).order(Order::Shares(vec![6, 0])).build().unwrap_err();
/// assert_eq!(error, PolicyError::Order(OrderError::Weight));
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

/// The virtual time that one unit takes a class of weight 1. A weight divides it with an error of at most one part in 2^16.
const STRIDE: u128 = 1 << 48;

/// The classes of a queue. By shares a class without waiters is kept, else it takes no memory.
#[derive(Debug)]
pub(super) struct Classes {
    order: Order,
    classes: BTreeMap<u64, Class>,
    // The classes that have waiters, by their starts: for round robin and shares.
    starts: BTreeSet<(u128, u64)>,
    // By shares, the start of the class that was served last. By round robin, the next number in turn.
    now: u128,
}

#[derive(Debug)]
struct Class {
    waiters: usize,
    // The sum of what its waiters ask for.
    sum: Ask,
    // The admissions of others since its latest.
    passed: u32,
    // The virtual time at which its next waiter starts, or its number in turn.
    start: u128,
}

impl Classes {
    pub(super) fn new(order: Order) -> Self {
        Self {
            order,
            classes: BTreeMap::new(),
            starts: BTreeSet::new(),
            now: 0,
        }
    }

    pub(super) fn order(&self) -> &Order {
        &self.order
    }

    /// The sum of the waiters that are certainly served before a newcomer of `class`.
    pub(super) fn ahead(&self, class: u64) -> Ask {
        match self.order {
            Order::Lifo => Ask::many(0),
            _ => self.classes.get(&class).map_or(Ask::many(0), |class| class.sum),
        }
    }

    pub(super) fn join(&mut self, class: u64, ask: &Ask) {
        let own = self.classes.entry(class).or_insert(Class {
            waiters: 0,
            sum: Ask::many(0),
            passed: 0,
            start: 0,
        });
        if own.waiters == 0 {
            own.start = own.start.max(self.now);
            self.now += u128::from(self.order == Order::RoundRobin);
            self.starts.insert((own.start, class));
        }
        own.waiters += 1;
        own.sum.absorb(ask);
    }

    pub(super) fn leave(&mut self, class: u64, ask: &Ask) {
        let Some(own) = self.classes.get_mut(&class) else {
            return;
        };
        own.waiters -= 1;
        own.sum.release(ask);
        if own.waiters == 0 {
            (own.sum, own.passed) = (Ask::many(0), 0);
            self.starts.remove(&(own.start, class));
            // By shares a class keeps what it has had ahead of the others; there are few classes then.
            if !matches!(self.order, Order::Shares(_)) {
                self.classes.remove(&class);
            }
        }
    }

    /// A waiter of `class` is admitted; it still counts as waiting.
    pub(super) fn served(&mut self, class: u64, ask: &Ask) {
        for (&other, state) in &mut self.classes {
            state.passed = match other == class || state.waiters == 0 {
                true => 0,
                false => state.passed.saturating_add(1),
            };
            if !matches!(self.order, Order::Priority { .. }) {
                break;
            }
        }
        let Some(own) = self.classes.get_mut(&class) else {
            return;
        };
        self.starts.remove(&(own.start, class));
        match &self.order {
            Order::Shares(weights) => {
                let weight = weights.get(class as usize).copied().unwrap_or(1);
                let cost = STRIDE * u128::from(ask.count().max(1)) / u128::from(weight);
                self.now = self.now.max(own.start);
                own.start = own.start.saturating_add(cost);
            }
            _ => {
                own.start = self.now;
                self.now += 1;
            }
        }
        self.starts.insert((own.start, class));
    }

    /// The class that is served next.
    pub(super) fn next(&self) -> Option<u64> {
        match self.order {
            Order::Fifo | Order::Lifo => self.classes.keys().next().copied(),
            Order::Priority { patience, .. } => {
                let late = self.classes.iter().filter(|(_, class)| class.passed >= patience);
                let latest = late.max_by_key(|(number, class)| (class.passed, std::cmp::Reverse(**number)));
                latest
                    .map(|(&class, _)| class)
                    .or_else(|| self.classes.keys().next().copied())
            }
            Order::RoundRobin | Order::Shares(_) => self.starts.first().map(|&(_, class)| class),
        }
    }

    /// The class whose oldest waiter goes where a newcomer of `class` finds the queue full.
    pub(super) fn evicts_for(&self, class: u64) -> Option<u64> {
        match self.order {
            Order::Priority { .. } => self.classes.keys().next_back().copied().filter(|&last| class <= last),
            _ => {
                let longest = self.classes.iter().max_by_key(|(_, class)| class.waiters);
                longest.map(|(&class, _)| class)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served_with(returns: Returns, order: Order, asks: &[(u64, u64)], count: usize) -> Vec<u64> {
        let mut classes = Classes::new(order);
        let ask = |units: u64, class: u64| Ask::many(units).class(class);
        let units = |class: u64| {
            asks.iter()
                .find(|(own, _)| *own == class)
                .map_or(1, |(_, units)| *units)
        };
        for &(class, units) in asks {
            classes.join(class, &ask(units, class));
        }
        let mut order = Vec::new();
        for _ in 0..count {
            let class = classes.next().unwrap();
            let own = ask(units(class), class);
            classes.served(class, &own);
            match returns {
                // The class has no waiter for a moment.
                Returns::AfterItsEnd => {
                    classes.leave(class, &own);
                    classes.join(class, &own);
                }
                Returns::Before => {
                    classes.join(class, &own);
                    classes.leave(class, &own);
                }
            }
            order.push(class);
        }
        order
    }

    /// When the next waiter of a class that was served joins.
    #[derive(Clone, Copy)]
    enum Returns {
        Before,
        AfterItsEnd,
    }

    /// Each class has one waiter at a time.
    fn served(order: Order, asks: &[(u64, u64)], count: usize) -> Vec<u64> {
        served_with(Returns::Before, order, asks, count)
    }

    #[test]
    fn a_caller_that_asks_again_and_again_passes_no_class_that_waits() {
        for asks in [[(0, 1), (1, 1)], [(1, 1), (0, 1)]] {
            for returns in [Returns::Before, Returns::AfterItsEnd] {
                for order in [Order::RoundRobin, Order::Shares(vec![1, 1])] {
                    let mut classes = served_with(returns, order.clone(), &asks, 10);
                    classes.sort_unstable();
                    assert_eq!(classes, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1], "{order:?}");
                }
            }
        }
    }

    /// Given a class with a backlog, when one caller of another class joins anew after each of its admissions, then both are served in turn.
    #[test]
    fn one_caller_takes_turns_with_a_backlog() {
        let mut classes = Classes::new(Order::RoundRobin);
        let ask = Ask::one();
        (0..100).for_each(|_| classes.join(1, &ask));
        let mut served = [0, 0];
        for _ in 0..40 {
            classes.join(0, &ask);
            for _ in 0..2 {
                let class = classes.next().unwrap();
                classes.served(class, &ask);
                classes.leave(class, &ask);
                served[class as usize] += 1;
                if class == 0 {
                    break;
                }
            }
        }
        assert!(served[1] >= 39, "{served:?}");
    }

    #[test]
    fn large_asks_and_weights_keep_their_proportions() {
        let asks = [(0, 1 << 40), (1, 1 << 40)];
        let order = served(Order::Shares(vec![1, 1]), &asks, 100_000);
        assert_eq!(order.iter().filter(|&&class| class == 0).count(), 50_000);
        let order = served(Order::Shares(vec![u32::MAX, u32::MAX / 2]), &[(0, 1), (1, 1)], 3_000);
        let first = order.iter().filter(|&&class| class == 0).count();
        assert!((1_999..=2_001).contains(&first), "{first}");
    }

    #[test]
    fn a_class_is_passed_over_at_most_patience_times() {
        let order = Order::Priority {
            classes: 3,
            patience: 2,
        };
        assert_eq!(served(order, &[(0, 1), (1, 1), (2, 1)], 8), [0, 0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn round_robin_serves_any_number_of_classes_in_turn() {
        let far = u64::MAX - 1;
        assert_eq!(
            served(Order::RoundRobin, &[(7, 5), (far, 1), (9, 1)], 6),
            [7, far, 9, 7, far, 9]
        );
    }

    #[test]
    fn shares_are_in_proportion_to_weights() {
        let order = served(Order::Shares(vec![4, 1]), &[(0, 1), (1, 1)], 50);
        assert_eq!(order.iter().filter(|&&class| class == 0).count(), 40);
        // Units count, not admissions.
        let order = served(Order::Shares(vec![1, 1]), &[(0, 4), (1, 1)], 50);
        assert_eq!(order.iter().filter(|&&class| class == 0).count(), 10);
    }

    #[test]
    fn the_class_with_the_most_waiters_makes_room() {
        for order in [Order::RoundRobin, Order::Shares(vec![1, 1])] {
            let mut classes = Classes::new(order);
            for class in [0, 0, 0, 1] {
                classes.join(class, &Ask::one());
            }
            assert_eq!((classes.evicts_for(0), classes.evicts_for(1)), (Some(0), Some(0)));
        }
    }

    #[test]
    fn classes_without_waiters_take_no_memory() {
        let mut classes = Classes::new(Order::RoundRobin);
        for class in 0..1_000 {
            let ask = Ask::one().class(class);
            classes.join(class, &ask);
            classes.served(class, &ask);
            classes.leave(class, &ask);
        }
        assert_eq!(
            (classes.classes.len(), classes.starts.len(), classes.next()),
            (0, 0, None)
        );
    }
}
