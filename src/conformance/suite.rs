//! What a limiter says about itself, the order in which the laws are checked, and the verdict.

use super::world::World;
use super::{guards, laws, turns, waits};
use crate::core::ask::{Ask, Cost};
use crate::core::limiter::Limiter;
use crate::time::ManualClock;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Something done to a limiter from outside.
type Change<L> = Box<dyn Fn(&L)>;

/// A description of one limiter, to be checked against the laws.
///
/// Numbers are in *asks*: a limiter of 10 tokens that is asked for 2 at a time has a capacity of 5.
#[must_use = "nothing is checked before `run` or `check`"]
pub struct Suite<L> {
    make: Box<dyn Fn(&ManualClock) -> L>,
    pub(super) ask: Ask,
    pub(super) capacity: usize,
    /// Capacity is held by a permit until it is finished.
    pub(super) holds: bool,
    /// Capacity comes back by itself: after so long an exhausted limiter that nobody uses is fresh again.
    pub(super) refill: Option<Duration>,
    pub(super) settle: Option<(Cost, u64)>,
    pub(super) loosen: Option<Change<L>>,
    /// What no instant can admit.
    pub(super) never_fits: Option<Ask>,
    /// Several reservations that overlap are given back exactly, in whatever order.
    pub(super) exact: bool,
    pub(super) in_turn: bool,
    pub(super) patience: Duration,
    takes_turns: bool,
    excused: Vec<u8>,
}

impl<L: Limiter + 'static> Suite<L> {
    fn new(capacity: usize, make: impl Fn(&ManualClock) -> L + 'static) -> Self {
        Self {
            make: Box::new(make),
            ask: Ask::one(),
            capacity,
            holds: false,
            refill: None,
            settle: None,
            loosen: None,
            never_fits: None,
            exact: true,
            patience: Duration::from_secs(10),
            in_turn: false,
            takes_turns: false,
            excused: Vec::new(),
        }
    }

    /// A limiter whose permits hold their capacity until they are finished, and that admits `capacity` asks at once.
    ///
    /// `make` is called often, and must make the same each time.
    pub fn of_permits(capacity: usize, make: impl Fn(&ManualClock) -> L + 'static) -> Self {
        Self {
            holds: true,
            ..Self::new(capacity, make)
        }
    }

    /// A limiter whose capacity comes back by itself. A fresh one admits `capacity` asks at one instant, and an
    /// exhausted one that nobody uses is as good as fresh after `refill`.
    ///
    /// `make` is called often, and must make the same each time, on the clock that it is given.
    pub fn of_rate(capacity: usize, refill: Duration, make: impl Fn(&ManualClock) -> L + 'static) -> Self {
        Self {
            refill: Some(refill),
            ..Self::new(capacity, make)
        }
    }

    /// Permits hold capacity as well: a policy of a rate and a semaphore. Capacity is back when all permits are
    /// finished and the refill time has passed.
    pub fn holding(mut self) -> Self {
        self.holds = true;
        self
    }

    /// Others share what comes back, so that nobody knows when it is there for us: whoever waits does so in turn, as for permits.
    pub fn in_turn(mut self) -> Self {
        self.in_turn = true;
        self
    }

    /// Of several reservations that overlap, a cancel may give back less, as a token bucket does that could have been
    /// full in between. A lone reservation that is cancelled at its own instant is still given back exactly.
    pub fn inexact_cancel(mut self) -> Self {
        self.exact = false;
        self
    }

    /// Several queues that wait for it take turns, as at a [`Semaphore`](crate::Semaphore): of two policies with steady
    /// demand each gets at least 40 %, and no wait grows for ever. So it is with a policy and its
    /// [lane](crate::Policy::lane).
    ///
    /// A limiter of your own takes turns where its [`queues`](crate::Limiter::queues) shows one: its own
    /// [`WaitQueue`](crate::sync::wait_queue::WaitQueue), or that of a limiter of ours in which it holds its capacity.
    /// **Starvation**: where several policies wait for a limiter that shows no queue, they race for what comes free, and one of
    /// them may lose for ever. Share one policy between all callers then.
    pub fn takes_turns(mut self) -> Self {
        self.takes_turns = true;
        self
    }

    /// What to ask for each time; [`Ask::one`] unless set.
    pub fn ask(mut self, ask: impl Into<Ask>) -> Self {
        self.ask = ask.into();
        self
    }

    /// Once admitted, an ask can be settled to `actual` units of `cost`. Settling all of `capacity` permits so must
    /// make room for one more ask.
    pub fn settle(mut self, cost: Cost, actual: u64) -> Self {
        self.settle = Some((cost, actual));
        self
    }

    /// What raises the limit, so that an exhausted limiter has room for one more ask at once.
    pub fn loosen(mut self, loosen: impl Fn(&L) + 'static) -> Self {
        self.loosen = Some(Box::new(loosen));
        self
    }

    /// An ask that no instant can admit under the settings that the limiter is made with: more than the burst of a rate. It is
    /// refused as `Oversized` at once, whatever is taken, and is never waited for.
    pub fn never_fits(mut self, ask: impl Into<Ask>) -> Self {
        self.never_fits = Some(ask.into());
        self
    }

    /// This law is not checked, since the limiter cannot keep it and says so. Without the third, whatever rests on
    /// giving back is not checked either: what a later leg's refusal undoes, and laws 6 and 7.
    pub fn excused(mut self, law: u8) -> Self {
        self.excused.push(law);
        self
    }

    /// After how much real time an attempt is taken to block; 10 s unless set. It only bounds a failure.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub(super) fn world(&self) -> World<L> {
        let clock = ManualClock::new();
        // Not at zero: nothing may depend on where the clock starts.
        clock.advance(Duration::from_nanos(1_234_567_891));
        let limiter = (self.make)(&clock);
        World::new(clock, limiter)
    }

    /// Checks every law that the description allows to check.
    ///
    /// Laws are checked in an order in which one broken law does not make another look broken: 1, 4, 2, 3, 5, 7, 8, 6.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn run(&self) -> Result<Report, Violation> {
        let mut report = Report {
            checks: [0; 8],
            turns: 0,
        };
        type Law<L> = fn(&Suite<L>, &mut Tally<'_>) -> Result<(), Violation>;
        // The law that is checked, and one that the check takes for granted.
        let order: [(u8, u8, Law<L>); 11] = [
            (1, 1, laws::never_blocks),
            (4, 4, laws::commit_cannot_fail),
            (2, 2, laws::a_refusal_leaves_no_trace),
            (3, 3, laws::cancel_restores),
            (3, 3, laws::a_late_cancel_mints_nothing),
            (5, 5, guards::ends_once),
            (2, 3, guards::a_later_leg_that_refuses_or_panics_leaves_no_trace),
            (7, 3, waits::nothing_is_held_while_waiting),
            (8, 8, laws::ready_at_is_exact),
            (8, 8, laws::what_never_fits_is_refused_for_good),
            (6, 3, waits::whoever_waits_is_woken),
        ];
        for (law, needs, check) in order {
            if self.excused.contains(&law) || self.excused.contains(&needs) {
                continue;
            }
            let checks = &mut report.checks[usize::from(law) - 1];
            self.check_one(Rule::Law(law), checks, check)?;
        }
        if self.takes_turns {
            self.check_one(Rule::Turns, &mut report.turns, turns::queues_take_turns)?;
        }
        Ok(report)
    }

    fn check_one(
        &self,
        rule: Rule,
        checks: &mut u32,
        check: impl FnOnce(&Self, &mut Tally<'_>) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let mut tally = Tally { rule, checks };
        match catch_unwind(AssertUnwindSafe(|| check(self, &mut tally))) {
            Ok(verdict) => verdict,
            Err(panic) => Err(Violation::new(rule, format!("a panic: {}", message(&*panic)))),
        }
    }

    /// [`run`](Suite::run), for a test.
    ///
    /// # Panics
    /// With the number of the law that is broken, and how.
    #[track_caller]
    pub fn check(&self) -> Report {
        match self.run() {
            Ok(report) => report,
            Err(violation) => panic!("{violation}"),
        }
    }
}

impl<L> fmt::Debug for Suite<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite")
            .field("ask", &self.ask)
            .field("capacity", &self.capacity)
            .field("holds", &self.holds)
            .field("refill", &self.refill)
            .finish_non_exhaustive()
    }
}

pub(super) fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// That the limiter is as it was described.
    Description,
    Law(u8),
    Turns,
}

/// Counts the checks of one rule, and says which it is when one fails.
pub(super) struct Tally<'a> {
    rule: Rule,
    checks: &'a mut u32,
}

impl Tally<'_> {
    /// One check.
    pub(super) fn ensure(&mut self, holds: bool, what: impl FnOnce() -> String) -> Result<(), Violation> {
        *self.checks += 1;
        if holds {
            Ok(())
        } else {
            Err(Violation::new(self.rule, what()))
        }
    }
}

/// What was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    checks: [u32; 8],
    turns: u32,
}

impl Report {
    /// How many checks of this law were made; zero for a number that is no law's.
    pub fn checks(&self, law: u8) -> u32 {
        let index = usize::from(law).wrapping_sub(1);
        self.checks.get(index).copied().unwrap_or(0)
    }

    /// How many checks of the [turns](Suite::takes_turns) were made.
    pub fn turns(&self) -> u32 {
        self.turns
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("checks by law:")?;
        for (law, checks) in (1..).zip(&self.checks) {
            write!(f, " {law}: {checks}{}", if law < 8 { "," } else { "" })?;
        }
        match self.turns {
            0 => Ok(()),
            turns => write!(f, "; of turns: {turns}"),
        }
    }
}

/// A law that the limiter breaks, or a description that does not fit it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    rule: Rule,
    what: String,
}

impl Violation {
    fn new(rule: Rule, what: String) -> Self {
        Self { rule, what }
    }

    /// The limiter is not as described.
    pub(super) fn description(what: String) -> Self {
        Self::new(Rule::Description, what)
    }

    /// The number of the law; `None` when the limiter is not as it was described, so that no law could be checked, or when
    /// queues do not take turns at it.
    pub fn law(&self) -> Option<u8> {
        match self.rule {
            Rule::Law(law) => Some(law),
            Rule::Description | Rule::Turns => None,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Rule::Law(law) => write!(f, "law {law}: {}", self.what),
            Rule::Turns => write!(f, "no turns: {}", self.what),
            Rule::Description => write!(f, "not as described: {}", self.what),
        }
    }
}

impl std::error::Error for Violation {}
