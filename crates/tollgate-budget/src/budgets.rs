//! The budgets of a process: their rules, and the levels and accounts that are known.

use crate::account::{Account, AccountState};
use crate::directory::{Hashing, Table};
use crate::level::{Counter, Counters, SEGMENTS};
use crate::period::{Borders, Span, instant_of, nanos_of, since_1970, zone};
use crate::rule::{BudgetError, Limit, Measure, Period, Rule};
use crate::shim::{Mutex, MutexGuard, prefetch};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tollgate::{Clock, Cost, Instant, MAX_COSTS};

/// A rule at work.
pub(crate) struct RuleState {
    pub(crate) rule: Rule,
    /// The number of the rule, and of that from which it borrows.
    pub(crate) number: usize,
    pub(crate) parent: Option<usize>,
    /// What an admission reads of each limit.
    pub(crate) checks: Box<[Check]>,
    /// The periods of each limit of the calendar.
    borders: Box<[Option<Mutex<Borders>>]>,
    clock: Clock,
}

/// A limit, as far as an admission reads it.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) amount: u64,
    /// What it counts: see [`Charge::units`](crate::account::Charge::units).
    pub(crate) measure: u8,
    pub(crate) soft: bool,
}

impl RuleState {
    fn new(number: usize, rules: &[Rule], costs: &[Cost], clock: &Clock) -> Self {
        let rule = rules[number].clone();
        let parent = |name: &String| rules.iter().position(|other| other.name == *name);
        let check = |limit: &Limit| Check {
            amount: limit.amount,
            soft: limit.soft,
            measure: match limit.measure {
                Measure::Requests => 0,
                Measure::InFlight => 1,
                Measure::Cost(cost) => 2 + costs.iter().position(|known| *known == cost).unwrap_or(0) as u8,
            },
        };
        let borders = |limit: &Limit| match limit.period {
            None | Some(Period::Rolling(_)) => None,
            Some(period) => Some(Mutex::new(Borders::new(period, zone(&limit.time_zone)?))),
        };
        Self {
            checks: rule.limits.iter().map(check).collect(),
            borders: rule.limits.iter().map(borders).collect(),
            clock: clock.clone(),
            number,
            parent: rule.borrows_from.as_ref().and_then(parent),
            rule,
        }
    }

    /// The period of a limit of the calendar at `now`.
    fn span(&self, limit: usize, now: u64) -> Span {
        match &self.borders[limit] {
            Some(borders) => borders.lock().at(now, || since_1970(self.clock.wall())),
            None => Span::NONE,
        }
    }

    /// Whether the period of a limit at the instant `then` of the wall clock lasts.
    pub(crate) fn lasts(&self, limit: usize, then: i128) -> bool {
        let now = since_1970(self.clock.wall());
        match (&self.borders[limit], self.rule.limits[limit].period) {
            (Some(borders), _) => borders.lock().lasts(then, now),
            (None, Some(Period::Rolling(length))) => {
                // A segment later a unit of then has come back.
                let nanos = length.as_nanos() as i128;
                now - then < nanos + nanos / i128::from(SEGMENTS)
            }
            (None, _) => false,
        }
    }

    fn matches(&self, descriptor: &[(&str, &str)]) -> bool {
        let mut conditions = self.rule.when.iter();
        conditions.all(|(dimension, value)| value_of(descriptor, dimension) == value)
    }
}

/// The value of a dimension; empty without it.
fn value_of<'a>(descriptor: &[(&str, &'a str)], dimension: &str) -> &'a str {
    let found = descriptor.iter().find(|(name, _)| *name == dimension);
    found.map_or("", |(_, value)| value)
}

/// One level of a rule: the counters of one combination of values.
pub(crate) struct Level {
    counters: Mutex<Counters>,
    pub(crate) rule: Arc<RuleState>,
    /// The values of the dimensions by which the rule splits. `None` for the level of the rule itself: the only one of a rule that
    /// does not split, else the one for keys without room.
    pub(crate) key: Option<Box<[Box<str>]>>,
    pub(crate) hash: u64,
    /// Made when the first policy waits.
    waiting: OnceLock<Box<Mutex<Waiting>>>,
}

/// The accounts at which policies wait, by their addresses.
type Waiting = BTreeMap<usize, Weak<AccountState>>;

impl Level {
    fn new(rule: &Arc<RuleState>, key: Option<Box<[Box<str>]>>, hash: u64) -> Self {
        let counters = rule.rule.limits.iter().map(|limit| Counter::new(limit.shape()));
        Self {
            rule: Arc::clone(rule),
            key,
            hash,
            counters: Mutex::new(counters.collect()),
            waiting: OnceLock::new(),
        }
    }

    /// Has the processor fetch what an admission changes, without a wait for it.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.counters);
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Counters> {
        self.counters.lock()
    }

    /// Moves all counters on to `now`. Returns the start of the period that began last.
    #[inline]
    pub(crate) fn advance(&self, counters: &mut Counters, now: u64) -> u64 {
        let mut newest = 0;
        for (limit, counter) in counters.iter_mut().enumerate() {
            counter.advance(now, |now| self.rule.span(limit, now));
            newest = newest.max(counter.began());
        }
        newest
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        &self.rule.rule.limits
    }

    pub(crate) fn name(&self) -> &str {
        &self.rule.rule.name
    }

    /// Each dimension by which the rule splits, with the value of this level.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let values = self.key.iter().flatten().map(|value| &**value);
        self.rule.rule.per.iter().map(String::as_str).zip(values)
    }

    /// Keys without room count here.
    pub(crate) fn is_overflow(&self) -> bool {
        self.key.is_none() && !self.rule.rule.per.is_empty()
    }

    /// Equals one just made.
    fn is_new(&self, now: u64) -> bool {
        let mut counters = self.lock();
        self.advance(&mut counters, now);
        counters.iter().all(Counter::is_new)
    }

    /// Has `account` told of room from now on. Returns whether it was not before.
    ///
    /// Before the counters are read: a change that is not seen there then finds the account.
    pub(crate) fn tell(&self, account: &Arc<AccountState>) -> bool {
        let waiting = self.waiting.get_or_init(|| Box::new(Mutex::new(BTreeMap::new())));
        let told = waiting
            .lock()
            .insert(Arc::as_ptr(account).addr(), Arc::downgrade(account));
        told.is_none()
    }

    /// Has `account` not told any more.
    pub(crate) fn tell_no_more(&self, account: &AccountState) {
        if let Some(waiting) = self.waiting.get() {
            waiting.lock().remove(&std::ptr::from_ref(account).addr());
        }
    }

    /// Tells waiting policies that there may be room. Outside the lock.
    pub(crate) fn notify(&self) {
        let Some(waiting) = self.waiting.get() else { return };
        // Dropped after the lock is released, as it may be the last of an account.
        let mut accounts = Vec::new();
        waiting.lock().retain(|_, account| {
            let account = account.upgrade();
            let waits = account.as_deref().is_some_and(AccountState::is_waited_for);
            accounts.extend(account);
            waits
        });
        accounts.iter().for_each(|account| account.notify());
    }
}

/// The bytes of all values of a key that can have a level.
const MAX_KEY: usize = 1_024;

/// Shards in which a new key at the bound looks for an account that is not needed.
const LOOKS_AT_SHARDS: usize = 4;

/// What an account needs of its budgets.
pub(crate) struct Common {
    pub(crate) clock: Clock,
    /// The costs that any rule limits.
    pub(crate) costs: Vec<Cost>,
}

impl Common {
    pub(crate) fn now(&self) -> u64 {
        nanos_of(&self.clock, self.clock.now())
    }

    pub(crate) fn nanos(&self, at: Instant) -> u64 {
        nanos_of(&self.clock, at)
    }

    pub(crate) fn instant(&self, nanos: u64) -> Instant {
        instant_of(&self.clock, nanos)
    }
}

pub(crate) struct Shared {
    pub(crate) own: Arc<Common>,
    pub(crate) rules: Box<[Arc<RuleState>]>,
    /// For each rule the level without a key.
    pub(crate) common: Box<[Arc<Level>]>,
    /// All other levels. Read only when an account is made.
    levels: Mutex<Table<Level>>,
    accounts: Box<[Mutex<Table<AccountState>>]>,
    max_levels: usize,
    hashing: Hashing,
}

impl Shared {
    /// The level of `rule` for a descriptor.
    pub(crate) fn level(&self, rule: usize, descriptor: &[(&str, &str)]) -> Arc<Level> {
        let (state, common) = (&self.rules[rule], &self.common[rule]);
        let dimensions = &state.rule.per;
        if dimensions.is_empty() {
            return Arc::clone(common);
        }
        let values = || dimensions.iter().map(|dimension| value_of(descriptor, dimension));
        // Values come from outside.
        if values().map(str::len).sum::<usize>() > MAX_KEY {
            return Arc::clone(common);
        }
        let hash = self.hashing.hash(&(rule, Values(values)));
        let is = |level: &Level| {
            Arc::ptr_eq(&level.rule, state) && level.key.iter().flatten().map(|value| &**value).eq(values())
        };
        let mut levels = self.levels.lock();
        if let Some(level) = levels.find(hash, is) {
            return Arc::clone(level);
        }
        let now = self.own.now();
        if levels.len() >= self.max_levels && levels.evict(|level| level.is_new(now)).is_none() {
            return Arc::clone(common);
        }
        let level = Level::new(state, Some(values().map(Box::from).collect()), hash);
        // Its key may have counted there: what was used then counts on.
        let overflow = common.lock().iter().map(Counter::inherited).collect();
        *level.lock() = overflow;
        let level = Arc::new(level);
        levels.insert(hash, Arc::clone(&level));
        level
    }

    /// Makes room for levels at the bound: an account that is not held refers to its levels, and is made anew when it is asked for.
    fn make_room(&self, hash: u64) {
        if self.levels.lock().len() < self.max_levels {
            return;
        }
        let now = self.own.now();
        let may_go = |level: &Level| level.key.is_some() && level.is_new(now);
        let idle = |account: &AccountState| account.levels.iter().any(|level| may_go(level));
        let shards = self.accounts.len();
        for shard in 0..shards.min(LOOKS_AT_SHARDS) {
            let shard = &self.accounts[hash.wrapping_add(shard as u64) as usize % shards];
            let evicted = shard.lock().evict(idle);
            let Some(account) = evicted else { continue };
            let mut levels = self.levels.lock();
            let freed: Vec<_> = account
                .levels
                .iter()
                .map(|level| (level.hash, Arc::downgrade(level)))
                .collect();
            drop(account);
            for (hash, level) in freed {
                levels.remove(hash, |known| std::ptr::eq(known, level.as_ptr()) && may_go(known));
            }
            return;
        }
    }
}

/// Hashes values that are not in a slice.
struct Values<F>(F);

impl<'a, I: Iterator<Item = &'a str>, F: Fn() -> I> std::hash::Hash for Values<F> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.0)().for_each(|value| value.hash(state));
    }
}

/// The budgets of a process: rules, and a level for each combination of values that a rule tells apart. Cheap to clone; clones are the
/// same budgets.
///
/// # Memory
/// There are at most [`max_levels`](BudgetsBuilder::max_levels) levels, and as many accounts that are kept ready. At the bound a new
/// key takes the place of a level that equals a new one: its period is over or nothing was used in it, nothing runs there, and no
/// [`Account`] of it is held. If there is none among those that are looked at, the key counts on one *overflow* level of its rule,
/// which all such keys share, and which has the limits of one level. So does a key whose values have more than 1,024 bytes in all.
/// A key that gets a level later begins with what the overflow level has used in this period. So a flood of keys shares one budget, and no
/// key gets a second one. Calls in flight are the exception: those that run on the overflow level do not count on the level that a key gets
/// meanwhile. **Over-admission**: an [`Account`] of the overflow level that is kept goes on to count there. So its key has two
/// limits at most in a period: that of the overflow level, which all such keys share, and its own. Look accounts up for each request where
/// there may be more keys than levels.
///
/// ```
/// use tollgate_budget::{Budgets, Limit, OUTPUT, Period, Rule};
///
/// let budgets = Budgets::builder()
///     .rule(Rule::new("user").per(["user"]).limit(Limit::cost(OUTPUT, 1_000, Period::Day)))
///     .build()?;
/// let account = budgets.account(&[("user", "ann"), ("model", "large")]);
/// assert_eq!(account.usage().next().unwrap().key().collect::<Vec<_>>(), [("user", "ann")]);
/// # Ok::<(), tollgate_budget::BudgetError>(())
/// ```
#[derive(Clone)]
pub struct Budgets(pub(crate) Arc<Shared>);

impl Budgets {
    /// A builder without rules.
    pub fn builder() -> BudgetsBuilder {
        BudgetsBuilder {
            rules: Vec::new(),
            clock: Clock::real(),
            max_levels: 100_000,
        }
    }

    /// The account of a descriptor: the level of each rule that matches it. Dimensions that no rule names do no harm.
    ///
    /// A descriptor that is known costs a lookup and no allocation. Keep the account, or look it up for each request.
    pub fn account(&self, descriptor: &[(&str, &str)]) -> Account {
        let shared = &self.0;
        let hash = shared.hashing.hash(descriptor);
        let shard = &shared.accounts[hash as usize % shared.accounts.len()];
        if let Some(known) = shard.lock().find(hash, |account| account.is(descriptor)) {
            return Account(Arc::clone(known));
        }
        shared.make_room(hash);
        let rules = 0..shared.rules.len();
        let matching = rules.filter(|rule| shared.rules[*rule].matches(descriptor));
        let levels = matching.map(|rule| shared.level(rule, descriptor)).collect();
        let account = Arc::new(AccountState::new(&shared.own, descriptor, levels));
        // A key without a level of its own is looked up anew: it gets one as soon as there is room.
        let bytes: usize = descriptor.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes <= 2 * MAX_KEY && !account.levels.iter().any(|level| level.is_overflow()) {
            let mut accounts = shard.lock();
            if let Some(known) = accounts.find(hash, |account| account.is(descriptor)) {
                return Account(Arc::clone(known));
            }
            let full = accounts.len() >= shared.max_levels.div_ceil(shared.accounts.len());
            if !full || accounts.evict(|_| true).is_some() {
                accounts.insert(hash, Arc::clone(&account));
            }
        }
        Account(account)
    }

    /// What each level has used, of all levels that are known. The order is not defined.
    pub fn usage(&self) -> impl Iterator<Item = LevelUsage> + use<> {
        let shared = &self.0;
        let mut levels = shared.common.to_vec();
        levels.extend(shared.levels.lock().iter().cloned());
        let now = shared.own.now();
        levels.into_iter().map(move |level| LevelUsage::of(level, now))
    }

    /// The number of levels that have a key.
    pub fn len(&self) -> usize {
        self.0.levels.lock().len()
    }

    /// True without any level that has a key.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.0.own.clock
    }
}

impl fmt::Debug for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budgets")
            .field("levels", &self.len())
            .finish_non_exhaustive()
    }
}

/// Builds [`Budgets`].
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate_budget::{Budgets, Limit, Period, Rule};
/// let calls = Rule::new("user").per(["user"]).limit(Limit::requests(2, Period::Minute));
/// let budgets = Budgets::builder().rule(calls).max_levels(10_000).on(&ManualClock::new()).build()?;
/// let ann = budgets.account(&[("user", "ann")]);
/// assert!(ann.reserve(2).is_ok() && ann.reserve(1).is_err());
/// assert!(budgets.account(&[("user", "bob")]).reserve(1).is_ok());
/// # Ok::<(), tollgate_budget::BudgetError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before `build`"]
pub struct BudgetsBuilder {
    rules: Vec<Rule>,
    clock: Clock,
    max_levels: usize,
}

impl BudgetsBuilder {
    /// Adds a rule. Rules are asked in this order, and the first that refuses is named.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the clock; the real one by default.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// Sets the most levels that are kept, at least 1; 100,000 by default. See [the memory of budgets](Budgets#memory).
    pub fn max_levels(mut self, max: usize) -> Self {
        self.max_levels = max.max(1);
        self
    }

    /// The rules, in order.
    #[cfg(feature = "shared")]
    pub(crate) fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Checks the rules together. Returns the costs that they limit, or the number of the wrong rule.
    pub(crate) fn check(&self) -> Result<Vec<Cost>, (usize, BudgetError)> {
        let (mut costs, mut names) = (Vec::<Cost>::new(), HashSet::new());
        let (mut parents, mut borrowed) = (HashMap::<&str, &Rule>::new(), HashSet::new());
        for (at, rule) in self.rules.iter().enumerate() {
            rule.check().map_err(|error| (at, error))?;
            if !names.insert(&*rule.name) {
                return Err((at, BudgetError::new(&rule.name, "name", &rule.name, "each name once")));
            }
            if let Some(parent) = &rule.borrows_from {
                let wrong = |allowed| Err((at, BudgetError::new(&rule.name, "borrows_from", parent, allowed)));
                match parents.get(&**parent) {
                    None => return wrong("the name of a rule before it"),
                    Some(other) if other.when != rule.when || !other.per.iter().all(|each| rule.per.contains(each)) => {
                        return wrong("a rule with the same `when`, and no dimension that this one has not");
                    }
                    _ if !borrowed.insert(&**parent) => return wrong("each rule once"),
                    _ => {}
                }
            }
            parents.insert(&*rule.name, rule);
            for limit in &rule.limits {
                if let Measure::Cost(cost) = limit.measure {
                    if !costs.contains(&cost) {
                        costs.push(cost);
                    }
                }
            }
            if costs.len() > MAX_COSTS {
                let given = costs[MAX_COSTS].name();
                let allowed = "at most four costs in all rules";
                return Err((at, BudgetError::new(&rule.name, "cost", given, allowed)));
            }
        }
        Ok(costs)
    }

    /// Builds the budgets.
    ///
    /// # Errors
    /// [`BudgetError`]: a rule that cannot be, two rules of one name, or more than [`MAX_COSTS`] costs in all rules.
    pub fn build(&self) -> Result<Budgets, BudgetError> {
        let costs = self.check().map_err(|(_, error)| error)?;
        let rule = |number| Arc::new(RuleState::new(number, &self.rules, &costs, &self.clock));
        let rules: Box<[_]> = (0..self.rules.len()).map(rule).collect();
        // Few enough that one holds dozens of accounts: else the bound of each would be far from the bound of all.
        let shards = (self.max_levels / 64).clamp(1, 64);
        Ok(Budgets(Arc::new(Shared {
            common: rules.iter().map(|rule| Arc::new(Level::new(rule, None, 0))).collect(),
            rules,
            own: Arc::new(Common {
                costs,
                clock: self.clock.clone(),
            }),
            levels: Mutex::new(Table::new()),
            accounts: (0..shards).map(|_| Mutex::new(Table::new())).collect(),
            max_levels: self.max_levels,
            hashing: Hashing::new(),
        })))
    }
}

/// What one level has used: of each limit of its rule.
///
/// ```
/// use tollgate::Ask;
/// use tollgate_budget::{Budgets, Limit, OUTPUT, Period, Rule};
///
/// let rule = Rule::new("team").per(["team"]).limit(Limit::cost(OUTPUT, 100, Period::Month).soft());
/// let budgets = Budgets::builder().rule(rule).build()?;
/// let mut meter = budgets.account(&[("team", "search")]).reserve(Ask::one().cost(OUTPUT, 120)).unwrap();
/// meter.extend(OUTPUT, 110).unwrap();
/// drop(meter);
/// // For operators: the soft limits that are over.
/// let over = |level: &tollgate_budget::LevelUsage| level.limits().any(|limit| limit.is_over());
/// let over: Vec<_> = budgets.usage().filter(over).collect();
/// assert_eq!(over[0].to_string(), "team of team=search: 110 of 100 output per month");
/// # Ok::<(), tollgate_budget::BudgetError>(())
/// ```
pub struct LevelUsage {
    level: Arc<Level>,
    counts: Box<[LimitCount]>,
}

#[derive(Clone, Copy)]
struct LimitCount {
    total: u64,
    open: u64,
    next: Option<Duration>,
}

impl LevelUsage {
    pub(crate) fn of(level: Arc<Level>, now: u64) -> Self {
        let mut counters = level.lock();
        level.advance(&mut counters, now);
        let count = |counter: &Counter| LimitCount {
            total: counter.total(),
            open: counter.open(),
            next: counter
                .ends()
                .map(|ends| Duration::from_nanos(ends.saturating_sub(now))),
        };
        let counts = counters.iter().map(count).collect();
        drop(counters);
        Self { level, counts }
    }

    /// The name of the rule.
    pub fn rule(&self) -> &str {
        self.level.name()
    }

    /// Each dimension by which the rule splits, with the value of this level. Empty for the overflow level.
    pub fn key(&self) -> impl Iterator<Item = (&str, &str)> {
        self.level.pairs()
    }

    /// True for the level on which keys count that found no room.
    pub fn is_overflow(&self) -> bool {
        self.level.is_overflow()
    }

    /// Each limit, with what is used of it.
    pub fn limits(&self) -> impl Iterator<Item = LimitUsage<'_>> {
        let usage = |(limit, count): (_, &LimitCount)| LimitUsage { limit, count: *count };
        self.level.limits().iter().zip(&self.counts).map(usage)
    }
}

impl fmt::Display for LevelUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_level(f, &self.level)?;
        for (at, limit) in self.limits().enumerate() {
            write!(
                f,
                "{} {} of {}",
                if at > 0 { "," } else { ":" },
                limit.used() + limit.open(),
                limit.limit()
            )?;
        }
        Ok(())
    }
}

impl fmt::Debug for LevelUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LevelUsage({self})")
    }
}

/// `user of organisation=acme, user=ann`
pub(crate) fn write_level(f: &mut fmt::Formatter<'_>, level: &Level) -> fmt::Result {
    f.write_str(level.name())?;
    if level.is_overflow() {
        return f.write_str(" of other keys");
    }
    for (at, (dimension, value)) in level.pairs().enumerate() {
        write!(f, "{} {dimension}={value}", if at > 0 { "," } else { " of" })?;
    }
    Ok(())
}

/// What is used of one limit of a level, in its current period.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate_budget::{Budgets, Limit, Period, Rule};
/// # use std::time::Duration;
/// let calls = Rule::new("user").per(["user"]).limit(Limit::requests(5, Period::Rolling(Duration::from_secs(60))));
/// let budgets = Budgets::builder().rule(calls).on(&ManualClock::new()).build()?;
/// let ann = budgets.account(&[("user", "ann")]);
/// let _call = ann.reserve(2)?;
/// let level = ann.usage().next().expect("one rule matches");
/// let usage = level.limits().next().expect("it has a limit");
/// assert_eq!((usage.used() + usage.open(), usage.left(), usage.is_over()), (2, 3, false));
/// assert_eq!((level.rule(), level.key().collect::<Vec<_>>()), ("user", vec![("user", "ann")]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct LimitUsage<'a> {
    limit: &'a Limit,
    count: LimitCount,
}

impl<'a> LimitUsage<'a> {
    /// The limit.
    pub fn limit(&self) -> &'a Limit {
        self.limit
    }

    /// The units that admissions have used which ended, or which cannot give them back any more.
    pub fn used(&self) -> u64 {
        self.count.total - self.count.open
    }

    /// The units that running admissions hold.
    pub fn open(&self) -> u64 {
        self.count.open
    }

    /// The units that can be reserved now.
    pub fn left(&self) -> u64 {
        self.limit.amount.saturating_sub(self.count.total)
    }

    /// True when more is used and held than the amount: of a soft limit, or by running streams.
    pub fn is_over(&self) -> bool {
        self.count.total > self.limit.amount
    }

    /// The time to the end of the period; of a rolling one, until the next units come back, if any are used. `None` for calls in flight.
    pub fn period_ends_in(&self) -> Option<Duration> {
        self.count.next
    }
}

impl fmt::Debug for LimitUsage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LimitUsage({} used, {} open, of {})",
            self.used(),
            self.open(),
            self.limit
        )
    }
}
