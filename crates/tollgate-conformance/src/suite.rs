//! The description of a limiter, the order of the checks, and the verdict.

use super::world::World;
use super::{guards, laws, turns, waits};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tollgate::{Ask, Cost, Limiter, ManualClock};

/// A change of a limiter from outside.
type Change<L> = Box<dyn Fn(&L)>;

/// A description of one limiter, to be checked against the laws.
///
/// Numbers are in *asks*: a limiter of 10 tokens that is asked for 2 at a time has a capacity of 5.
///
/// ```
/// # use tollgate::{Ask, Quota, TokenBucket};
/// # use tollgate_conformance::Suite;
/// # use std::time::Duration;
/// let bucket = |clock: &tollgate::ManualClock| TokenBucket::new(Quota::per_second(5)).on(clock);
/// let report = Suite::of_rate(5, Duration::from_secs(1), bucket).inexact_cancel().never_fits(Ask::many(6)).run();
/// assert!(report.is_ok_and(|report| report.checks(5) > 0));
/// ```
#[must_use = "nothing is checked before `run` or `check`"]
pub struct Suite<L> {
    make: Box<dyn Fn(&ManualClock) -> L>,
    pub(super) ask: Ask,
    pub(super) capacity: usize,
    /// Capacity is held by a permit until it is finished.
    pub(super) holds: bool,
    /// Capacity comes back by itself: an exhausted limiter that is not used is fresh again after this time.
    pub(super) refill: Option<Duration>,
    pub(super) settle: Option<(Cost, u64)>,
    pub(super) loosen: Option<Change<L>>,
    /// An ask that no instant can admit.
    pub(super) never_fits: Option<Ask>,
    /// Overlapping admissions are restored exactly when they are cancelled, in any order.
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

    /// Describes a limiter that admits `capacity` asks at once, and whose permits hold their capacity until they finish.
    ///
    /// `make` is called often, and must make the same limiter each time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{Ask, Semaphore};
    /// # use tollgate_conformance::Suite;
    /// let report = Suite::of_permits(3, |_clock| Semaphore::new(6))
    ///     .ask(Ask::many(2))
    ///     .loosen(|semaphore| semaphore.set_limit(8))
    ///     .in_turn()
    ///     .patience(Duration::from_secs(1))
    ///     .run();
    /// assert!(report.is_ok_and(|report| report.checks(6) > 0));
    /// ```
    pub fn of_permits(capacity: usize, make: impl Fn(&ManualClock) -> L + 'static) -> Self {
        Self {
            holds: true,
            ..Self::new(capacity, make)
        }
    }

    /// Describes a limiter whose capacity comes back by itself. A fresh limiter admits `capacity` asks at one instant. An
    /// exhausted limiter that is not used is as good as fresh after `refill`.
    ///
    /// `make` is called often, and must make the same limiter each time, on the clock that it is given.
    pub fn of_rate(capacity: usize, refill: Duration, make: impl Fn(&ManualClock) -> L + 'static) -> Self {
        Self {
            refill: Some(refill),
            ..Self::new(capacity, make)
        }
    }

    /// Says that permits hold capacity as well, as in a policy of a rate and a semaphore. All capacity is back when all
    /// permits have finished and the refill time has passed.
    pub fn holding(mut self) -> Self {
        self.holds = true;
        self
    }

    /// Says that others share the capacity, so that no instant is known: a waiter waits for its turn, as for a permit.
    pub fn in_turn(mut self) -> Self {
        self.in_turn = true;
        self
    }

    /// Allows a cancel among overlapping admissions to restore less, as a token bucket does that could have been full in
    /// between. A single admission that is cancelled at its own instant must still be restored exactly.
    pub fn inexact_cancel(mut self) -> Self {
        self.exact = false;
        self
    }

    /// Checks law 7 as well: several policies at the limiter take turns, as at a [`Semaphore`](tollgate::Semaphore). Of two
    /// policies with steady demand each gets at least 40 %, and no wait grows without bound.
    ///
    /// A limiter of your own keeps law 7 by its [`WaitQueue`](tollgate::sync::WaitQueue).
    ///
    /// **Starvation**: policies that wait for a limiter without a queue race for free capacity, and one of them may always lose.
    /// Share one policy between all callers then.
    pub fn takes_turns(mut self) -> Self {
        self.takes_turns = true;
        self
    }

    /// Sets the ask of each admission; [`Ask::one`] by default.
    pub fn ask(mut self, ask: impl Into<Ask>) -> Self {
        self.ask = ask.into();
        self
    }

    /// Checks settlements of an admitted ask to `actual` units of `cost`. Settling all of `capacity` permits must free
    /// capacity for one more ask.
    pub fn settle(mut self, cost: Cost, actual: u64) -> Self {
        self.settle = Some((cost, actual));
        self
    }

    /// Sets a change that raises the limit, so that an exhausted limiter admits one more ask at once.
    pub fn loosen(mut self, loosen: impl Fn(&L) + 'static) -> Self {
        self.loosen = Some(Box::new(loosen));
        self
    }

    /// Sets an ask that no instant can admit under the settings of the limiter, such as more than the burst of a rate. It must
    /// be refused as `Oversized` at once, at any fill level, and is never waited for.
    pub fn never_fits(mut self, ask: impl Into<Ask>) -> Self {
        self.never_fits = Some(ask.into());
        self
    }

    /// Skips law `law`, which the limiter is documented not to keep. Without law 3, checks that rest on cancelling are
    /// skipped as well: the roll-back for a later leg, and laws 6 and 9.
    pub fn excused(mut self, law: u8) -> Self {
        self.excused.push(law);
        self
    }

    /// Sets the real time after which an attempt counts as blocked; 10 s by default. It only bounds a failing run.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub(super) fn world(&self) -> World<L> {
        let clock = ManualClock::new();
        // Not at zero: nothing may depend on the clock's origin.
        clock.advance(Duration::from_nanos(1_234_567_891));
        let limiter = (self.make)(&clock);
        World::new(clock, limiter)
    }

    /// Checks every law that the description covers.
    ///
    /// The order is 8, 1, 3, 2, 9, 5, 4, 6, 7: in it, one broken law does not make another look broken.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn run(&self) -> Result<Report, Violation> {
        let mut report = Report { checks: [0; LAWS] };
        type Law<L> = fn(&Suite<L>, &mut Tally<'_>) -> Result<(), Violation>;
        // The law that is checked, and a law that the check presumes.
        let order: [(u8, u8, Law<L>); 16] = [
            (8, 8, laws::never_blocks),
            (1, 1, laws::a_refusal_leaves_no_trace),
            (3, 3, laws::cancel_restores),
            (3, 3, laws::a_late_cancel_mints_nothing),
            (3, 3, laws::a_settlement_mints_nothing),
            (2, 2, guards::ends_once),
            (2, 2, laws::a_stale_reading_adds_nothing),
            (1, 3, guards::a_later_leg_that_refuses_leaves_no_trace),
            (9, 3, guards::code_of_users_that_panics_leaves_no_trace),
            (1, 3, waits::nothing_is_held_while_waiting),
            (5, 5, laws::the_wait_is_exact),
            (5, 5, laws::an_oversized_ask_is_refused_for_good),
            (4, 4, laws::a_change_holds_at_once),
            (6, 3, waits::waiters_are_woken),
            (9, 6, waits::a_waker_that_panics_ends_alone),
            (7, 7, turns::policies_take_turns),
        ];
        for (law, needs, check) in order {
            // Law 6 itself rests on cancelling.
            let presumed = if needs == 6 { 3 } else { needs };
            let is_excused = [law, needs, presumed].iter().any(|law| self.excused.contains(law));
            if is_excused || (law == 7 && !self.takes_turns) {
                continue;
            }
            let checks = &mut report.checks[usize::from(law) - 1];
            self.check_one(Rule::Law(law), checks, check)?;
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

    /// Runs the suite, and panics at the first violation: [`run`](Suite::run) for a test.
    ///
    /// # Panics
    /// With the number of the broken law, and how it is broken.
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

/// The subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The limiter is as described.
    Description,
    Law(u8),
}

/// Counts the checks of one rule, and names the rule when a check fails.
pub(super) struct Tally<'a> {
    rule: Rule,
    checks: &'a mut u32,
}

impl Tally<'_> {
    /// Counts one check, and fails with `what` unless it `holds`.
    pub(super) fn ensure(&mut self, holds: bool, what: impl FnOnce() -> String) -> Result<(), Violation> {
        *self.checks += 1;
        if holds {
            Ok(())
        } else {
            Err(Violation::new(self.rule, what()))
        }
    }
}

/// The number of laws.
const LAWS: usize = 9;

/// The number of checks, by law.
///
/// ```
/// # use tollgate::Semaphore;
/// # use tollgate_conformance::Suite;
/// let report = Suite::of_permits(3, |_clock| Semaphore::new(3))
///     .loosen(|semaphore| semaphore.set_limit(4))
///     .takes_turns()
///     .check();
/// assert!((1..=9).all(|law| report.checks(law) > 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    checks: [u32; LAWS],
}

impl Report {
    /// The number of checks of this law; zero for a number that is not a law's.
    pub fn checks(&self, law: u8) -> u32 {
        let index = usize::from(law).wrapping_sub(1);
        self.checks.get(index).copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("checks by law:")?;
        for (law, checks) in (1..).zip(&self.checks) {
            write!(f, " {law}: {checks}{}", if law < LAWS { "," } else { "" })?;
        }
        Ok(())
    }
}

/// A law that the limiter breaks, or a description that does not fit it.
///
/// ```
/// # use tollgate::Semaphore;
/// # use tollgate_conformance::Suite;
/// // It has 2, and not 3.
/// let violation = Suite::of_permits(3, |_clock| Semaphore::new(2)).run().unwrap_err();
/// assert!(!violation.to_string().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    rule: Rule,
    what: String,
}

impl Violation {
    fn new(rule: Rule, what: String) -> Self {
        Self { rule, what }
    }

    /// A limiter that is not as described.
    pub(super) fn description(what: String) -> Self {
        Self::new(Rule::Description, what)
    }

    /// The number of the law; `None` if the limiter is not as described, so that no law could be checked.
    pub fn law(&self) -> Option<u8> {
        match self.rule {
            Rule::Law(law) => Some(law),
            Rule::Description => None,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Rule::Law(law) => write!(f, "law {law}: {}", self.what),
            Rule::Description => write!(f, "not as described: {}", self.what),
        }
    }
}

impl std::error::Error for Violation {}
