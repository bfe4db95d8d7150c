//! The account of a descriptor: the levels that it counts on, taken from all or none.
//!
//! A change locks all levels of the account, in the order of the rules, moves them to one instant, and is made at all of them. So no
//! other request sees half of it, and a refusal has nothing to give back.

use crate::budgets::{Common, Level, LevelUsage};
use crate::exceeded::Exceeded;
use crate::lend::{Cursor, Step};
use crate::level::Counters;
use crate::meter::Meter;
use crate::rule::Measure;
use crate::shim::MutexGuard;
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, OnceLock};
use tollgate::status::Description;
use tollgate::sync::{Place, WaitQueue};
use tollgate::{
    Ask, Cost, Demand, Instant, LegName, Limiter, MAX_COSTS, Outcome, Reason, Refusal, Role, Settlement, Ticket, Wait,
};

/// What an admission has taken from each level: the memory of one request, and the ticket of an [`Account`] as a limiter.
///
/// ```
/// # use tollgate::Limiter;
/// # use tollgate_budget::{Account, Charge};
/// fn is_ticket<L: Limiter<Ticket = Charge>>() -> bool {
///     true
/// }
/// assert!(is_ticket::<Account>());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The instant, in nanoseconds, to whose periods it belongs.
    pub(crate) at: u64,
    pub(crate) calls: u64,
    /// By the number of the cost.
    pub(crate) costs: [u64; MAX_COSTS],
}

impl Charge {
    /// The units of what a limit counts: calls, calls in flight, and the costs by their number.
    #[inline]
    pub(crate) fn units(&self, measure: usize) -> u64 {
        match measure {
            0 | 1 => self.calls,
            cost => self.costs[cost - 2],
        }
    }
}

impl Ticket for Charge {
    const WORDS: usize = 2 + MAX_COSTS;

    fn write(&self, words: &mut [u64]) {
        words[0] = self.at;
        words[1] = self.calls;
        words[2..Self::WORDS].copy_from_slice(&self.costs);
    }

    fn read(words: &[u64]) -> Self {
        let mut costs = [0; MAX_COSTS];
        costs.copy_from_slice(&words[2..Self::WORDS]);
        Self {
            at: words[0],
            calls: words[1],
            costs,
        }
    }
}

/// Why an account cannot admit: the limit, and when it could.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Denied {
    pub(crate) level: usize,
    pub(crate) limit: usize,
    pub(crate) reason: Reason,
    pub(crate) asked: u64,
    pub(crate) left: u64,
    /// The instant, in nanoseconds, from which on all limits have room; `None` if one of them waits for the end of another request.
    pub(crate) ready: Option<u64>,
    /// The instant before which some limit has no room; 0 if none is known.
    not_before: u64,
}

/// In place, as far as they are few.
pub(crate) type Levels = SmallVec<[Arc<Level>; 3]>;

pub(crate) struct AccountState {
    /// Not the budgets, whose table holds accounts.
    common: Arc<Common>,
    /// The texts of the descriptor, each behind its length: so that a lookup reads one place.
    descriptor: Box<[u8]>,
    pub(crate) levels: Levels,
    /// The costs that a limit here counts, as bits.
    counted: u8,
    /// For each level the way down to the last one that borrows from it. None without any.
    // In a box of its own, which takes one word of each account.
    paths: Option<Box<Paths>>,
    /// The policies that wait for this account. Made when the first does.
    queue: OnceLock<Box<WaitQueue>>,
}

impl AccountState {
    /// True while a policy waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.queue.get().is_some_and(|queue| !queue.is_empty())
    }

    /// There may be room for the policy that waits longest.
    pub(crate) fn notify(&self) {
        if let Some(queue) = self.queue.get() {
            queue.notify();
        }
    }

    pub(crate) fn new(common: &Arc<Common>, descriptor: &[(&str, &str)], levels: Levels) -> Self {
        let measures = levels
            .iter()
            .flat_map(|level| &level.rule.checks)
            .map(|check| check.measure);
        let counted = measures
            .filter(|measure| *measure >= 2)
            .fold(0, |bits, measure| bits | 1 << (measure - 2));
        Self {
            common: Arc::clone(common),
            descriptor: texts(descriptor)
                .flat_map(|text| [&length_of(text)[..], text.as_bytes()].concat())
                .collect(),
            counted,
            paths: paths(&levels),
            levels,
            queue: OnceLock::new(),
        }
    }

    #[inline]
    pub(crate) fn is(&self, descriptor: &[(&str, &str)]) -> bool {
        let mut rest = &*self.descriptor;
        texts(descriptor).all(|text| {
            let behind = rest
                .strip_prefix(&length_of(text))
                .and_then(|rest| rest.strip_prefix(text.as_bytes()));
            rest = behind.unwrap_or_default();
            behind.is_some()
        }) && rest.is_empty()
    }
}

impl Drop for AccountState {
    fn drop(&mut self) {
        if self.queue.get().is_some() {
            self.levels.iter().for_each(|level| level.tell_no_more(self));
        }
    }
}

fn texts<'a>(descriptor: &'a [(&str, &str)]) -> impl Iterator<Item = &'a str> {
    descriptor.iter().flat_map(|&(name, value)| [name, value])
}

/// A longer text is of a descriptor that is not kept.
fn length_of(text: &str) -> [u8; 4] {
    u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes()
}

type Paths = Box<[Box<[Step]>]>;

fn paths(levels: &[Arc<Level>]) -> Option<Box<Paths>> {
    let child_of = |level: &Level| levels.iter().find(|other| other.rule.parent == Some(level.rule.number));
    let path = |level: &Arc<Level>| {
        let below = std::iter::successors(child_of(level), |child| child_of(child));
        let step = |child: &Arc<Level>| Step {
            id: child.hash,
            weight: child.rule.rule.weight_of(child.key.as_deref()),
        };
        below.map(step).collect()
    };
    let lends = levels.iter().any(|level| level.rule.parent.is_some());
    lends.then(|| Box::new(levels.iter().map(path).collect()))
}

/// All levels of an account, locked, at one instant.
struct Locked<'a> {
    levels: &'a [Arc<Level>],
    paths: &'a [Box<[Step]>],
    guards: SmallVec<[MutexGuard<'a, Counters>; 8]>,
    at: u64,
}

impl<'a> Locked<'a> {
    /// Locks in the order of the rules, of which each has one level here: so no two wait for each other.
    #[inline]
    fn new(account: &'a AccountState, now: u64) -> Self {
        let levels = &account.levels;
        // An atomic change waits for its memory, and all that follows for it: so the levels are fetched side by side before.
        levels.iter().for_each(|level| level.prefetch());
        let (mut guards, mut at) = (SmallVec::new(), now);
        for level in levels {
            let mut counters = level.lock();
            at = at.max(level.advance(&mut counters, now));
            guards.push(counters);
        }
        let mut locked = Self {
            levels,
            paths: account.paths.as_deref().map_or(&[], |paths| paths),
            guards,
            at,
        };
        // Another thread may have read the clock later, and begun a period since. What is taken now belongs to that one.
        let mut before = now;
        while locked.at != before {
            before = locked.at;
            for (level, counters) in levels.iter().zip(&mut locked.guards) {
                locked.at = locked.at.max(level.advance(counters, before));
            }
        }
        locked
    }

    /// Each limit with its level's number, its own, what it counts, and its counter.
    #[inline]
    fn each(&mut self, mut with: impl FnMut(usize, usize, usize, &mut Cursor<'_>)) {
        for (at, (level, counters)) in self.levels.iter().zip(&mut self.guards).enumerate() {
            for (limit, (check, counter)) in level.rule.checks.iter().zip(counters.iter_mut()).enumerate() {
                let measure = usize::from(check.measure);
                let path: &[Step] = match self.paths.get(at) {
                    Some(path) if measure >= 2 && !check.soft => path,
                    _ => &[],
                };
                with(at, limit, measure, &mut Cursor::new(counter, path));
            }
        }
    }

    /// Takes `charge` where nothing is lent and all limits have room. False without a change otherwise.
    #[inline]
    fn take_plain(&mut self, charge: &Charge) -> bool {
        if !self.paths.is_empty() {
            return false;
        }
        for (level, counters) in self.levels.iter().zip(&self.guards) {
            for (check, counter) in level.rule.checks.iter().zip(&***counters) {
                let asked = charge.units(usize::from(check.measure));
                if asked > check.amount.saturating_sub(counter.total()) && asked > 0 && !check.soft {
                    return false;
                }
            }
        }
        for (level, counters) in self.levels.iter().zip(&mut self.guards) {
            for (check, counter) in level.rule.checks.iter().zip(&mut ***counters) {
                counter.take(charge.units(usize::from(check.measure)));
            }
        }
        true
    }

    /// Whether all limits have room for `charge`, behind the units that wait before it.
    fn check(&mut self, charge: &Charge, ahead: impl Fn(Measure) -> u64) -> Result<(), Denied> {
        let levels = self.levels;
        let mut denied: Option<Denied> = None;
        self.each(|level, limit, measure, counter| {
            let rule = &levels[level].limits()[limit];
            let (asked, amount) = (charge.units(measure), rule.amount);
            if rule.soft || asked == 0 {
                return;
            }
            let wanted = asked.saturating_add(ahead(rule.measure));
            let left = amount.saturating_sub(counter.counter().total());
            if wanted <= left || (asked <= amount && counter.may_claim(wanted, amount)) {
                return;
            }
            let reason = match rule.measure {
                _ if asked > amount => Reason::Oversized,
                Measure::InFlight => Reason::Saturated,
                _ => Reason::RateExceeded,
            };
            let ready = match counter.is_lent() {
                // Any unit that comes back may be enough.
                true => counter.counter().ends(),
                false => counter.counter().room_at(amount.saturating_sub(wanted)),
            };
            let this = Denied {
                level,
                limit,
                reason,
                asked,
                left,
                ready,
                not_before: ready.unwrap_or(0),
            };
            denied = Some(match denied {
                // What no instant can admit goes before, and then the order of the rules.
                Some(first) if first.reason.is_permanent() || !reason.is_permanent() => Denied {
                    ready: first.ready.zip(ready).map(|(one, two)| one.max(two)),
                    not_before: first.not_before.max(this.not_before),
                    ..first
                },
                _ => this,
            });
        });
        match denied {
            Some(denied) => Err(denied),
            None => Ok(()),
        }
    }
}

/// The account of one descriptor: its level in each rule that matches. A cheap handle; clones are the same account.
///
/// # As a limiter
/// An account is a [`Limiter`]: a leg of a policy, beside a semaphore or a breaker, that waits in the policy's queue. It reads the
/// [`Ask`] itself: the calls, and each cost that a rule counts. A permit that ends keeps its charge, as settled by
/// [`Permit::settle`](tollgate::Permit::settle); only calls in flight come back. A [`Meter`] instead charges what was metered.
///
/// Policies that wait for one account are served in the order in which they came. **Starvation**: policies of different accounts that
/// wait for the same level race for what comes back, and so does [`reserve`](Self::reserve). Share one policy between all its callers.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Ask, LimiterExt, ManualClock, Policy, Semaphore};
/// use tollgate_budget::{Budgets, Limit, OUTPUT, Period, Rule};
///
/// let clock = ManualClock::new();
/// let rule = Rule::new("user").per(["user"]).limit(Limit::cost(OUTPUT, 1_000, Period::Minute));
/// let budgets = Budgets::builder().rule(rule).on(&clock).build()?;
/// let policy = Policy::builder()
///     .limit(budgets.account(&[("user", "ann")]))
///     .limit(Semaphore::new(8).named("in flight"))
///     .max_wait(Duration::from_secs(60))
///     .build()?;
/// let ask = Ask::one().cost(OUTPUT, 600);
/// clock.run(async {
///     drop(policy.admit(ask).await.unwrap());
///     assert_eq!(policy.try_admit(ask).unwrap_err().leg(), "user");
///     drop(policy.admit(ask).await.unwrap());
///     assert_eq!(clock.elapsed(), Duration::from_secs(60));
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Account(pub(crate) Arc<AccountState>);

impl Account {
    /// Reserves `ask` on every level, or on none. The [`Meter`] charges what the request then uses.
    ///
    /// # Errors
    /// [`Exceeded`] names the first limit, in the order of the rules, that has no room for the ask; before that one that never has, and
    /// a cost that is limited here and that the ask does not name.
    ///
    /// ```
    /// # use tollgate::{Ask, Reason};
    /// # use tollgate_budget::{Budgets, Limit, OUTPUT, Period, Rule};
    /// let rule = Rule::new("user").per(["user"]).limit(Limit::cost(OUTPUT, 1_000, Period::Minute));
    /// let budgets = Budgets::builder().rule(rule).build()?;
    /// let account = budgets.account(&[("user", "ann")]);
    /// let meter = account.reserve(Ask::one().cost(OUTPUT, 800)).unwrap();
    /// let refused = account.reserve(Ask::one().cost(OUTPUT, 300)).unwrap_err();
    /// assert_eq!((refused.rule(), refused.asked(), refused.left()), ("user", 300, 200));
    /// assert!(refused.retry_after().is_some());
    /// assert_eq!(account.reserve(Ask::one()).unwrap_err().reason(), Reason::Unpriced);
    /// # Ok::<(), tollgate_budget::BudgetError>(())
    /// ```
    #[inline]
    pub fn reserve(&self, ask: impl Into<Ask>) -> Result<Meter, Exceeded> {
        let now = self.shared().now();
        match self.take(&ask.into(), now, false) {
            Ok(charge) => Ok(Meter::new(self.clone(), charge)),
            Err(denied) => Err(self.exceeded(&denied, now)),
        }
    }

    /// What each level of this account has used, in the order of the rules.
    pub fn usage(&self) -> impl Iterator<Item = LevelUsage> + use<> {
        let (now, account) = (self.shared().now(), Arc::clone(&self.0));
        (0..account.levels.len()).map(move |level| LevelUsage::of(Arc::clone(&account.levels[level]), now))
    }

    pub(crate) fn shared(&self) -> &Common {
        &self.0.common
    }

    /// Tells the policies that wait at any level.
    fn notify(&self) {
        self.0.levels.iter().for_each(|level| level.notify());
    }

    /// Has all levels tell this account of room. Returns whether one of them did not before.
    fn listen(&self) -> bool {
        let new = self.0.levels.iter().filter(|level| level.tell(&self.0));
        new.count() > 0
    }

    /// A level here lends to another.
    #[inline]
    pub(crate) fn lends(&self) -> bool {
        self.0.paths.is_some()
    }

    /// The number of a cost, if a limit here counts it.
    pub(crate) fn number_of(&self, cost: Cost) -> Option<usize> {
        let number = self.shared().costs.iter().position(|known| *known == cost)?;
        (self.0.counted >> number & 1 == 1).then_some(number)
    }

    pub(crate) fn exceeded(&self, denied: &Denied, now: u64) -> Exceeded {
        Exceeded::new(Arc::clone(&self.0.levels[denied.level]), denied, now)
    }

    /// What `ask` is to be charged. Fails with the first limit whose cost it does not name.
    fn price(&self, ask: &Ask) -> Result<Charge, Denied> {
        let mut charge = Charge {
            at: 0,
            calls: ask.count(),
            costs: [0; MAX_COSTS],
        };
        for (number, cost) in self.shared().costs.iter().enumerate() {
            match ask.of(*cost) {
                Some(units) => charge.costs[number] = units,
                None if self.0.counted >> number & 1 == 1 => return Err(self.unpriced(number)),
                None => {}
            }
        }
        Ok(charge)
    }

    #[cold]
    fn unpriced(&self, number: usize) -> Denied {
        let counts = |level: &Arc<Level>| {
            level
                .rule
                .checks
                .iter()
                .position(|check| usize::from(check.measure) == number + 2)
        };
        let mut limits = self
            .0
            .levels
            .iter()
            .enumerate()
            .filter_map(|(at, level)| Some((at, counts(level)?)));
        let (level, limit) = limits.next().unwrap_or((0, 0));
        Denied {
            level,
            limit,
            reason: Reason::Unpriced,
            asked: 0,
            left: 0,
            ready: None,
            not_before: 0,
        }
    }

    /// Takes `ask` from all levels, or from none.
    #[inline]
    fn take(&self, ask: &Ask, now: u64, is_spent: bool) -> Result<Charge, Denied> {
        let mut charge = self.price(ask)?;
        let mut locked = Locked::new(&self.0, now);
        if locked.take_plain(&charge) {
            charge.at = locked.at;
            return Ok(charge);
        }
        locked.check(&charge, |_| 0)?;
        charge.at = locked.at;
        locked.each(|_, _, measure, counter| {
            counter.take(charge.units(measure));
            if is_spent {
                counter.spend(charge.at, 0, charge.units(measure));
            }
        });
        Ok(charge)
    }

    /// Changes all levels at once: `change` has the number of each limit in the account, what it counts, its counter, and the instant.
    /// Tells waiting policies afterwards, if that `loosens`.
    pub(crate) fn change(&self, loosens: bool, mut change: impl FnMut(usize, usize, &mut Cursor<'_>, u64)) {
        let mut number = 0;
        let mut locked = Locked::new(&self.0, self.shared().now());
        let at = locked.at;
        locked.each(|_, _, measure, counter| {
            change(number, measure, counter, at);
            number += 1;
        });
        drop(locked);
        if loosens {
            self.notify();
        }
    }

    /// Charges `units` more of a cost, whether there is room or not, by `take`. Fails with the first limit that is over then.
    pub(crate) fn charge_more(
        &self,
        cost: usize,
        units: u64,
        mut take: impl FnMut(usize, &mut Cursor<'_>, u64),
    ) -> Result<(), Exceeded> {
        let now = self.shared().now();
        let mut locked = Locked::new(&self.0, now);
        let (levels, at) = (locked.levels, locked.at);
        let (mut number, mut denied) = (0, None);
        locked.each(|level, limit, measure, counter| {
            if measure == cost + 2 {
                let before = counter.counter().total();
                take(number, counter, at);
                // Units of a period that is over are charged to none.
                if counter.counter().total() == before && !counter.is_lent() {
                    number += 1;
                    return;
                }
                let rule = &levels[level].limits()[limit];
                if !rule.soft && denied.is_none() && counter.is_over(rule.amount) {
                    denied = Some(Denied {
                        level,
                        limit,
                        reason: Reason::RateExceeded,
                        asked: units,
                        left: 0,
                        ready: counter.counter().room_at(rule.amount.saturating_sub(1)),
                        not_before: 0,
                    });
                }
            }
            number += 1;
        });
        drop(locked);
        denied.map_or(Ok(()), |denied| Err(self.exceeded(&denied, now)))
    }
}

impl Account {
    /// Would the request of `demand` be admitted at `now`, behind `ahead` calls?
    fn judge(&self, demand: &Demand<'_>, ahead: u64, now: Instant) -> Result<(), Refusal> {
        let ahead = |measure| match measure {
            Measure::Cost(cost) => demand.per(cost).map_or(0, |demand| demand.ahead()),
            Measure::Requests | Measure::InFlight => ahead,
        };
        let nanos = self.shared().nanos(now);
        self.price(demand.ask())
            .and_then(|charge| Locked::new(&self.0, nanos).check(&charge, ahead))
            .map_err(|denied| self.refusal(&denied, now))
    }

    #[cold]
    fn refusal(&self, denied: &Denied, now: Instant) -> Refusal {
        let shared = self.shared();
        let until = |at| Wait::until(&shared.clock, now, shared.instant(at));
        let wait = match denied.ready {
            _ if denied.reason.is_permanent() => Wait::Never,
            Some(ready) => until(ready),
            None if denied.not_before > 0 => until(denied.not_before).and(Wait::EVENT),
            None => Wait::EVENT,
        };
        let leg = LegName::copied(self.0.levels[denied.level].name());
        Refusal::new(denied.reason, leg, wait)
    }
}

/// The name of an account in descriptions, and where only other waiters are before a request.
const LEG: &str = "budget";

impl Limiter for Account {
    type Ticket = Charge;

    #[inline]
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<Charge, Refusal> {
        let shared = self.shared();
        let now = demand.now(&shared.clock);
        if let Some(queue) = self.0.queue.get() {
            queue.check(&demand.per_call(), |_, ahead| self.judge(demand, ahead, now))?;
        }
        self.take(demand.ask(), shared.nanos(now), true)
            .map_err(|denied| self.refusal(&denied, now))
    }

    fn cancel(&self, ticket: Charge) {
        self.change(true, |_, measure, counter, _| {
            counter.spend(ticket.at, ticket.units(measure), 0);
            counter.give_back(ticket.at, ticket.units(measure));
        });
    }

    fn settle(&self, ticket: &mut Charge, settlement: &Settlement) -> u32 {
        let Some(number) = self.number_of(settlement.cost()) else {
            return 0;
        };
        let before = ticket.costs[number];
        // The account reads the costs of a request itself, so it takes those of a settlement as they are.
        let Some(after) = settlement.per(settlement.cost()).actual() else {
            return 0;
        };
        ticket.costs[number] = after;
        self.change(after < before, |_, measure, counter, _| {
            if measure == number + 2 {
                counter.give_back(ticket.at, before.saturating_sub(after));
                counter.take_more(ticket.at, after.saturating_sub(before));
                counter.spend(ticket.at, before, after);
            }
        });
        1
    }

    /// Calls in flight of a permit that is forgotten are held for good.
    fn finish(&self, ticket: Charge, outcome: Outcome) {
        let (mut comes_back, is_kept) = (false, outcome == Outcome::Forgotten);
        self.change(false, |_, measure, counter, _| match measure {
            1 if is_kept => {}
            1 => {
                comes_back = true;
                counter.give_back(ticket.at, ticket.calls);
            }
            _ => counter.close(ticket.at, ticket.units(measure)),
        });
        if comes_back {
            self.notify();
        }
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        let now = demand.now(&self.shared().clock);
        let (calls, judge) = (demand.per_call(), |_, ahead| self.judge(demand, ahead, now));
        if demand.role() != Role::Joining {
            return match self.0.queue.get() {
                Some(queue) => queue.look(&calls, judge),
                None => judge(calls.units(), calls.ahead()),
            };
        }
        let queue = self.0.queue.get_or_init(|| Box::new(WaitQueue::new(LEG)));
        loop {
            self.listen();
            let looked = queue.look(&calls, judge);
            // A level tells no account at which no policy waits: it may have left this one out before the head had joined.
            if looked.is_ok() || !self.listen() {
                return looked;
            }
        }
    }

    fn leave(&self, place: &Place) {
        if let Some(queue) = self.0.queue.get() {
            queue.leave(place);
        }
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        visit(Description::new(LEG).on(&self.shared().clock));
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.usage()).finish()
    }
}
