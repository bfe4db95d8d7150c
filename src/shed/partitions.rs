//! One limit, shared by classes.

use super::error::ShedError;
use crate::algo::shed::{Rule, Shares};
use crate::ask::Demand;
use crate::limiter::{Heeds, Limiter, Outcome};
use crate::refusal::{ReadyAt, Reason, Refusal, Wait};
use crate::standing::{Standing, State};
use crate::sync::bell::Bell;
use crate::sync::shim::Mutex;
use crate::time::Pass;
use std::fmt;
use std::sync::Arc;

const LEG: &str = "partition";

/// A limit on how many run at once, shared by classes of work. All classes together never hold more than the limit,
/// whatever the rule:
///
/// | made by | a class is admitted while | prefer it when |
/// |---|---|---|
/// | [`guaranteed`](Self::guaranteed) | what the others have unused of their parts stays free | nobody may starve |
/// | [`lent`](Self::lent) | anything is free | idle capacity is worse than waiting for one's own |
/// | [`levels`](Self::levels) | all together hold less than its part of the limit | the important goes first under overload |
///
/// With a limit of 10 and parts of 0.3 and 0.7: guaranteed, the first class gets 3 and the second 7. With parts of 0.3 and
/// 0.5, 2 are left for whoever comes first. Lent, either gets 10, if the other holds nothing. By levels of 1 and 0.7, the
/// second is refused from 7 in flight on, and the first from 10 on.
///
/// Each class is a [`Limiter`] of its own. A permit that is forgotten counts as held for good. To wait in turn, put it into a [`Policy`](crate::Policy).
///
/// # Memory ordering
/// What is done before a permit is given back is seen by whoever is admitted afterwards.
///
/// ```
/// # use tollgate::shed::Partitions;
/// # use tollgate::LimiterExt;
/// let [batch, live] = [0, 1];
/// let shared = Partitions::guaranteed(10, &[0.3, 0.5])?;
/// let held: Vec<_> = (0..5).map(|_| shared.class(batch).try_admit_owned(1).unwrap()).collect();
/// assert!(shared.class(batch).try_admit(1).is_err(), "five are kept for the others");
/// assert!(shared.class(live).try_admit(5).is_ok());
/// # drop(held);
/// # Ok::<(), tollgate::shed::ShedError>(())
/// ```
pub struct Partitions {
    classes: Box<[Arc<Class>]>,
    shared: Arc<Shared>,
}

struct Shared {
    shares: Mutex<Shares>,
    bell: Bell,
}

/// One class of a [`Partitions`].
pub struct Class {
    shared: Arc<Shared>,
    class: usize,
}

impl Partitions {
    /// Each class has a part of the limit (0 to 1) for itself, rounded down to a whole number. What is left over goes to
    /// whoever comes first.
    ///
    /// # Errors
    /// [`ShedError`] when there are no classes or more than 256, a part is not 0 to 1, or all are more than 1.
    pub fn guaranteed(limit: usize, parts: &[f64]) -> Result<Self, ShedError> {
        let sum: f64 = parts.iter().sum();
        // As many millionths as there are classes may be lost by adding.
        if sum > 1.0 + 1e-9 {
            return Err(ShedError::Parts { sum });
        }
        Self::build(limit, parts, Rule::Kept)
    }

    /// So many classes, each of which may take whatever is free.
    ///
    /// # Errors
    /// [`ShedError`] when there are no classes or more than 256.
    pub fn lent(limit: usize, classes: usize) -> Result<Self, ShedError> {
        Self::build(limit, &vec![0.0; classes.min(257)], Rule::Lent)
    }

    /// Each class is admitted while all together hold less than its part (0 to 1) of the limit: 1 for what matters most.
    ///
    /// # Errors
    /// [`ShedError`] when there are no classes or more than 256, or a part is not 0 to 1.
    pub fn levels(limit: usize, parts: &[f64]) -> Result<Self, ShedError> {
        Self::build(limit, parts, Rule::Level)
    }

    fn build(limit: usize, parts: &[f64], rule: Rule) -> Result<Self, ShedError> {
        if parts.is_empty() || parts.len() > 256 {
            return Err(ShedError::Classes { given: parts.len() });
        }
        for (class, &given) in parts.iter().enumerate() {
            if !(0.0..=1.0).contains(&given) {
                return Err(ShedError::Part { class, given });
            }
        }
        let millionths = parts.iter().map(|part| (part * 1e6 + 1e-6) as u64).collect();
        let shared = Arc::new(Shared {
            shares: Mutex::new(Shares::new(limit as u64, millionths, rule)),
            bell: Bell::new(),
        });
        let class = |class| {
            let shared = Arc::clone(&shared);
            Arc::new(Class { shared, class })
        };
        Ok(Self {
            classes: (0..parts.len()).map(class).collect(),
            shared,
        })
    }

    /// The class of this number, counting from 0. As a leg of a policy: `.limit(partitions.class(0).clone())`.
    ///
    /// # Panics
    /// If there is no such class.
    #[track_caller]
    pub fn class(&self, class: usize) -> &Arc<Class> {
        &self.classes[class]
    }

    /// How many may run at once, of all classes.
    pub fn limit(&self) -> usize {
        self.shared.shares.lock().limit() as usize
    }

    /// Changes the limit at once, and with it every part. What is held stays held: nobody is admitted before it fits.
    pub fn set_limit(&self, limit: usize) {
        self.shared.shares.lock().set_limit(limit as u64);
        self.shared.bell.ring();
    }

    /// How many run, of all classes. A snapshot.
    pub fn in_use(&self) -> usize {
        self.shared.shares.lock().total() as usize
    }
}

impl Class {
    /// How many of this class run. A snapshot.
    pub fn in_use(&self) -> usize {
        self.shared.shares.lock().held(self.class) as usize
    }

    /// Its part of the limit, in whole units.
    pub fn part(&self) -> usize {
        self.shared.shares.lock().part(self.class) as usize
    }

    fn give_back(&self, units: u64) {
        self.shared.shares.lock().give_back(self.class, units);
        self.shared.bell.ring();
    }
}

impl Limiter for Class {
    /// How many units.
    type Ticket = u64;

    fn try_reserve(&self, demand: Demand<'_>) -> Result<u64, Refusal<'_>> {
        let units = demand.units();
        let before = seeded!("shares_asks_twice") && self.shared.shares.lock().fits(self.class, units);
        let taken = self.shared.shares.lock().take(self.class, units) || before;
        match taken {
            true => Ok(units),
            false => Err(Refusal::new(Reason::Saturated, LEG, units, Wait::Event)),
        }
    }

    fn cancel(&self, units: u64, _: Pass<'_>) {
        self.give_back(units);
    }

    fn finish(&self, units: u64, _: Outcome, _: Pass<'_>) {
        self.give_back(units);
    }

    /// Counts as held from now on.
    fn forget(&self, _: u64) {}

    #[inline]
    fn heeds(&self) -> Heeds {
        Heeds::FINISH
    }

    fn ready_at(&self, demand: Demand<'_>) -> ReadyAt<'_> {
        demand.listen(&self.shared.bell);
        let units = demand.units().saturating_add(demand.ahead());
        match self.shared.shares.lock().fits(self.class, units) {
            true => ReadyAt::NOW,
            false => ReadyAt::on_event(LEG),
        }
    }

    /// What it holds is not the entry's, but of what all classes share. In a [`Keyed`](crate::Keyed) it is a leg as a
    /// [`Shared`](crate::keyed::Shared): `Shared::from(partitions.class(0).clone())`.
    fn is_fresh(&self, _: Pass<'_>) -> bool {
        true
    }

    /// Its part of the limit, and what it has of it, which may be more while others need less than theirs.
    fn survey(&self, visit: &mut dyn FnMut(Standing<'_>)) {
        let state = State::Permits {
            limit: self.part() as u64,
            in_use: self.in_use() as u64,
            waiting: 0,
        };
        visit(Standing::new(LEG, LEG, state));
    }
}

impl fmt::Debug for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Class")
            .field("class", &self.class)
            .field("in_use", &self.in_use())
            .field("part", &self.part())
            .finish()
    }
}

impl fmt::Debug for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partitions")
            .field("limit", &self.limit())
            .field("classes", &self.classes)
            .finish()
    }
}
