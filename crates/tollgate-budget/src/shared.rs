//! Budgets that processes share, at a store: the same rules, and one step of the store for all levels of a request.
//!
//! | | [`Budgets`](crate::Budgets) | [`SharedBudgets`] |
//! |---|---|---|
//! | counts in | this process | a store, for all processes |
//! | a reservation | takes locks | is one step of the store, over all levels |
//! | calls in flight | of any rule | of one rule |
//! | an amount | any | up to [`MAX_UNITS`] |
//! | lent to other rules | yes | an error when it is built |
//!
//! A rolling period is a window of the store. A period of the calendar is a key of its own, which has the start of the period in its name,
//! and a window so long that nothing comes back by itself before the period ends. So a rule is a level of the store for its rolling
//! limits, and one for each of its calendars.

use crate::budgets::{Budgets, BudgetsBuilder};
use crate::exceeded::write_retry_after;
use crate::period::{Borders, instant_of, nanos_of, since_1970, zone};
use crate::rule::{BudgetError, Limit, Measure, Period, Rule};
use parking_lot::Mutex;
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::{
    Backend, Driver, Key, KeyedLimits, MAX_UNITS, OnUnavailable, Remote, RemoteError, RemoteKey, RemoteKeyPermit,
    RemoteKeyUsage, RemoteKeyed, RemoteKeyedBuilder, RemoteLeg,
};
use tollgate::{Ask, Clock, Cost, LegName, MAX_COSTS, Reason, Refusal};

/// Budgets at a store, which all processes share that have the same rules and the same name. Cheap to clone.
///
/// A reservation is one step of the store over all levels of the request, all or nothing. So is each charge beyond it. Corrections, and
/// what a meter gives back, are sent without a wait.
///
/// # What is guaranteed
/// In any span of a limit's length, or in its period of the calendar, all processes together exceed a hard limit by at most the largest
/// single charge ([`SharedMeter::extend`], [`SharedMeter::settle`]) of each running request. The store counts a rolling span in 64
/// segments: a unit comes back when the length has passed, and at most a 64th of it later. A period of the calendar is that of the wall
/// clock of the process that asks: processes whose clocks differ begin it at different instants.
///
/// # Memory
/// A process knows at most 100,000 keys for each rule at which a request runs, or is under way or refused; see [`RemoteKeyed`]. The store forgets a level two
/// periods after its last charge.
///
/// # When a process dies
/// What it has in flight and reserved goes back when its lease ends: a [time to live](SharedBudgetsBuilder::ttl) after the store last heard of
/// it, and at most a quarter of that later. What was metered stays charged, as far as it was reported. A meter that ends is reported at once,
/// a running one with the next step of its finest level, at least three times in a time to live.
///
/// **Over-admission**: what a process that died had metered and not reported is not counted: at most what its streams have produced in a third
/// of a time to live. A process that cannot reach the store for a time to live goes on with its streams, and others are admitted in the place
/// of what it has reserved. Once the store hears of it, all of it counts again.
///
/// ```
/// use std::time::Duration;
/// use tollgate::remote::{Key, Memory};
/// use tollgate::{Ask, ManualClock};
/// use tollgate_budget::{Limit, OUTPUT, Period, Rule, SharedBudgets};
///
/// let clock = ManualClock::new();
/// let minute = Period::Rolling(Duration::from_secs(60));
/// let budgets = SharedBudgets::builder(Key::new("budgets")?)
///     .rule(Rule::new("organisation").per(["organisation"]).limit(Limit::cost(OUTPUT, 1_500, minute)))
///     .rule(Rule::new("user").per(["user"]).limit(Limit::cost(OUTPUT, 1_000, minute)))
///     .on(&clock)
///     .in_place(Memory::new(&clock))?;
/// clock.run(async {
///     let ann = budgets.account(&[("organisation", "acme"), ("user", "ann")]);
///     let bob = budgets.account(&[("organisation", "acme"), ("user", "bob")]);
///     let mut meter = ann.reserve(Ask::one().cost(OUTPUT, 900)).await.unwrap();
///     meter.extend(OUTPUT, 300).await.unwrap();
///     let refused = bob.reserve(Ask::one().cost(OUTPUT, 700)).await.unwrap_err();
///     assert_eq!(refused.rule(), Some("organisation"));
///     drop(meter); // 600 come back.
///     assert!(bob.reserve(Ask::one().cost(OUTPUT, 700)).await.is_ok());
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedBudgets<B: Backend>(Arc<Shared<B>>);

struct Shared<B: Backend> {
    limits: RemoteKeyed<B>,
    levels: Vec<Level>,
    costs: Vec<Cost>,
    clock: Clock,
}

/// Limits of a rule that are counted at one key.
struct Level {
    /// The name at the store.
    name: String,
    rule: Rule,
    /// The limits here.
    limits: Vec<Limit>,
    /// Of the calendar.
    borders: Option<Mutex<Borders>>,
}

impl SharedBudgets<tollgate::remote::Memory> {
    /// A builder without rules. `name` comes before all keys at the store.
    pub fn builder(name: Key) -> SharedBudgetsBuilder {
        SharedBudgetsBuilder {
            name,
            rules: Budgets::builder(),
            clock: Clock::real(),
            ttl: Duration::from_secs(10),
            on_unavailable: OnUnavailable::default(),
        }
    }
}

impl<B: Backend> SharedBudgets<B> {
    /// The account of a descriptor: the level of each rule that matches it. No round trip. Without a rule that matches, it admits all.
    pub fn account(&self, descriptor: &[(&str, &str)]) -> SharedAccount<B> {
        let value = |dimension: &str| {
            let found = descriptor.iter().find(|(name, _)| *name == dimension);
            found.map_or("", |(_, value)| value)
        };
        let matches = |rule: &Rule| rule.when.iter().all(|(dimension, needed)| value(dimension) == needed);
        let levels = self.0.levels.iter().enumerate();
        let matching = levels.filter(|(_, level)| matches(&level.rule));
        let values = matching.map(|(at, Level { rule, .. })| {
            let values: Vec<_> = rule.per.iter().map(|dimension| escaped(value(dimension))).collect();
            (at, values.join(","))
        });
        SharedAccount(Arc::new(AccountState {
            shared: Arc::clone(&self.0),
            values: values.collect(),
            current: Mutex::new(None),
        }))
    }
}

impl<B: Backend> SharedBudgets<B> {
    /// Refuses all requests from now on, and sends the corrections and what meters have given back. Drop all meters before. Ends when the
    /// store has carried it out, or does not answer. Without it, a program that ends leaves the rest of its last reservations charged
    /// until their period is over.
    ///
    /// # Cancel safety
    /// As [`RemoteKeyed::close`].
    pub async fn close(&self) {
        self.0.limits.close().await;
    }
}

/// A part of a name at the store: other characters than letters, digits, `-`, `_`, `.` and `@` by their bytes.
fn escaped(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(byte);
    let mut escaped = String::with_capacity(text.len());
    for byte in text.as_bytes() {
        match plain(byte) {
            true => escaped.push(char::from(*byte)),
            false => drop(write!(escaped, "%{byte:02X}")),
        }
    }
    escaped
}

/// The name of a limit at the store: an amount that is changed keeps what was taken.
fn leg_name(limit: &Limit) -> String {
    match limit.period {
        None => limit.measure.to_string(),
        Some(period) => format!("{} per {period}", limit.measure),
    }
}

/// Builds [`SharedBudgets`].
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate::remote::{Key, MAX_UNITS, Memory};
/// # use tollgate_budget::{Limit, MONEY, Period, Rule, SharedBudgets};
/// let clock = ManualClock::new();
/// let rule = Rule::new("all").limit(Limit::cost(MONEY, MAX_UNITS + 1, Period::Month));
/// let error = SharedBudgets::builder(Key::new("budgets")?).rule(rule).in_place(Memory::new(&clock)).unwrap_err();
/// assert_eq!(error.to_string(), "rule `all`: `1099511627777` was given for amount, and at most 1099511627776 at a store is allowed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is built before `spawn`"]
pub struct SharedBudgetsBuilder {
    name: Key,
    rules: BudgetsBuilder,
    clock: Clock,
    ttl: Duration,
    on_unavailable: OnUnavailable,
}

impl SharedBudgetsBuilder {
    /// Adds a rule. The last rule should be the finest: requests of one process that share its key follow one another.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules = self.rules.rule(rule);
        self
    }

    /// Adds the rules of other budgets, such as those of a file.
    pub fn rules(mut self, of: &BudgetsBuilder) -> Self {
        self.rules = of.rules().iter().cloned().fold(self.rules, BudgetsBuilder::rule);
        self
    }

    /// Sets the clock by which waits are measured here; the real one by default. The store counts by its own.
    pub fn on(mut self, clock: &Clock) -> Self {
        self.clock = clock.clone();
        self
    }

    /// How long the store keeps the calls in flight, and the reservations, of a process that it does not hear of: ten seconds unless set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// What happens to reservations while the store is unavailable; they are refused unless set.
    pub fn on_unavailable(mut self, on_unavailable: OnUnavailable) -> Self {
        self.on_unavailable = on_unavailable;
        self
    }

    /// The levels of the store, and the builder of their limits.
    fn limiter(&self) -> Result<(RemoteKeyedBuilder, Vec<Level>, Vec<Cost>), SharedBudgetsError> {
        let costs = self.rules.check().map_err(|(_, error)| error)?;
        let levels = self.rules.rules().iter().map(levels_of);
        let levels: Vec<_> = levels.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let limits = |level: &Level| {
            let legs = level.limits.iter().map(|limit| leg(&level.rule, limit));
            let legs = legs.collect::<Result<Vec<_>, _>>()?;
            Ok::<_, BudgetError>((level.name.clone(), KeyedLimits::new(MAX_KEYS, "all", legs)))
        };
        let limits = levels.iter().map(limits).collect::<Result<Vec<_>, _>>()?;
        let builder = Remote::levels(self.name.clone(), limits)
            .on(&self.clock)
            .ttl(self.ttl)
            .reserves(true);
        Ok((builder.on_unavailable(self.on_unavailable), levels, costs))
    }

    /// Builds the budgets, and the [`Driver`] that has to be run for them.
    ///
    /// # Errors
    /// [`SharedBudgetsError::Rule`] for a rule that cannot be, or cannot be counted at a store: one that borrows, or of more than
    /// [`MAX_UNITS`] units. [`SharedBudgetsError::Store`] for calls in flight in several rules, more than 16 limits in all rules, or a store
    /// that cannot do it.
    pub fn build<B: Backend>(self, store: B) -> Result<(SharedBudgets<B>, Driver), SharedBudgetsError> {
        let (builder, levels, costs) = self.limiter()?;
        let (limits, driver) = builder.build(store)?;
        let clock = self.clock;
        Ok((
            SharedBudgets(Arc::new(Shared {
                limits,
                levels,
                costs,
                clock,
            })),
            driver,
        ))
    }

    /// Builds the budgets, and runs their driver as a task of the tokio runtime that is current.
    ///
    /// # Errors
    /// As [`build`](Self::build), and when there is no runtime.
    pub fn spawn<B: Backend>(self, store: B) -> Result<SharedBudgets<B>, SharedBudgetsError> {
        let (builder, levels, costs) = self.limiter()?;
        let limits = builder.spawn(store)?;
        let clock = self.clock;
        Ok(SharedBudgets(Arc::new(Shared {
            limits,
            levels,
            costs,
            clock,
        })))
    }

    /// Builds the budgets, and runs their driver [in place](Driver::in_place): for stores that answer at once.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn in_place<B: Backend>(self, store: B) -> Result<SharedBudgets<B>, SharedBudgetsError> {
        let (budgets, driver) = self.build(store)?;
        driver.in_place();
        Ok(budgets)
    }
}

/// The keys of a level that a process knows at most.
const MAX_KEYS: usize = 100_000;

/// The levels of a rule: one for what is not of a calendar, and one for each calendar. In flight comes last: the last level of a
/// request is the one whose permits are leased.
fn levels_of(rule: &Rule) -> Result<Vec<Level>, BudgetError> {
    let wrong = |what, given: &str, allowed| Err(BudgetError::new(&rule.name, what, given, allowed));
    if let Some(parent) = &rule.borrows_from {
        return wrong("borrows_from", parent, "none at a store");
    }
    let mut levels: Vec<Level> = Vec::new();
    for (at, limit) in rule.limits.iter().enumerate() {
        let is_same = |other: &Limit| (other.period, &other.time_zone) == (limit.period, &limit.time_zone);
        if rule.limits[..at]
            .iter()
            .any(|other| is_same(other) && other.measure == limit.measure)
        {
            return wrong("limits", &leg_name(limit), "each measure once in a period, at a store");
        }
        let mut name = escaped(&rule.name);
        let calendar = limit.period.filter(|period| Period::CALENDAR.contains(period));
        if let Some(period) = calendar {
            let _ = write!(name, "+{period}+{}", escaped(&limit.time_zone));
        }
        match levels.iter_mut().find(|level| level.name == name) {
            Some(level) => level.limits.push(limit.clone()),
            None => levels.push(Level {
                name,
                rule: rule.clone(),
                limits: vec![limit.clone()],
                borders: calendar.and_then(|period| Some(Mutex::new(Borders::new(period, zone(&limit.time_zone)?)))),
            }),
        }
    }
    levels.sort_by_key(|level| level.borders.is_none());
    Ok(levels)
}

/// A limit as the store counts it.
fn leg(rule: &Rule, limit: &Limit) -> Result<RemoteLeg, BudgetError> {
    if limit.amount > MAX_UNITS {
        let allowed = "at most 1099511627776 at a store";
        return Err(BudgetError::new(
            &rule.name,
            "amount",
            &limit.amount.to_string(),
            allowed,
        ));
    }
    // A soft limit counts, and never refuses.
    let amount = if limit.soft { MAX_UNITS } else { limit.amount };
    const HOUR: u64 = 3_600;
    const DAY: u64 = 24 * HOUR;
    let window = |period| match period {
        Period::Rolling(length) => length,
        // Twice the longest period, where clocks are set: nothing comes back before it ends, by a clock that runs behind either.
        Period::Minute => Duration::from_secs(2 * 60),
        Period::Hour => Duration::from_secs(2 * HOUR),
        Period::Day => Duration::from_secs(2 * (DAY + HOUR)),
        Period::Week => Duration::from_secs(2 * (7 * DAY + HOUR)),
        Period::Month => Duration::from_secs(2 * (31 * DAY + HOUR)),
    };
    let leg = match limit.period {
        None => RemoteLeg::permits(leg_name(limit), amount),
        Some(period) => RemoteLeg::window(leg_name(limit), amount, window(period)),
    };
    Ok(match limit.measure {
        Measure::Cost(cost) => leg.per(cost),
        Measure::Requests | Measure::InFlight => leg,
    })
}

/// Shared budgets that cannot be built.
///
/// ```
/// # use tollgate::remote::{Key, Memory};
/// # use tollgate_budget::{Rule, SharedBudgets, SharedBudgetsError};
/// let clock = tollgate::ManualClock::new();
/// let error = SharedBudgets::builder(Key::new("budgets").unwrap()).rule(Rule::new("all")).in_place(Memory::new(&clock)).unwrap_err();
/// assert!(matches!(error, SharedBudgetsError::Rule(rule) if rule.rule() == "all"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SharedBudgetsError {
    /// A rule that cannot be, or cannot be counted at a store.
    Rule(BudgetError),
    /// The rules together cannot be one step of the store, or a setting is out of range.
    Store(RemoteError),
}

impl fmt::Display for SharedBudgetsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SharedBudgetsError {}

impl From<BudgetError> for SharedBudgetsError {
    fn from(error: BudgetError) -> Self {
        Self::Rule(error)
    }
}

impl From<RemoteError> for SharedBudgetsError {
    fn from(error: RemoteError) -> Self {
        Self::Store(error)
    }
}

/// The levels of a descriptor in [`SharedBudgets`]. Cheap to clone; clones are the same account.
///
/// ```
/// # use tollgate::{Ask, ManualClock, Reason};
/// # use tollgate::remote::{Key, Memory};
/// # use tollgate_budget::{Limit, Rule, SharedBudgets};
/// let clock = ManualClock::new();
/// let rule = Rule::new("user").per(["user"]).limit(Limit::in_flight(1));
/// let budgets = SharedBudgets::builder(Key::new("budgets")?).rule(rule).on(&clock).in_place(Memory::new(&clock))?;
/// clock.run(async {
///     let ann = budgets.account(&[("user", "ann")]);
///     let running = ann.reserve(1).await.unwrap();
///     assert_eq!(ann.reserve(Ask::one()).await.unwrap_err().reason(), Reason::Saturated);
///     drop(running);
///     assert!(ann.reserve(Ask::one()).await.is_ok());
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SharedAccount<B: Backend>(Arc<AccountState<B>>);

struct AccountState<B: Backend> {
    shared: Arc<Shared<B>>,
    /// The levels that match, each with the values of its dimensions.
    values: Vec<(usize, String)>,
    current: Mutex<Option<Arc<Current<B>>>>,
}

/// The keys of an account, in the current periods.
struct Current<B: Backend> {
    /// The starts of the periods of the calendar.
    began: Vec<i128>,
    key: RemoteKey<B>,
}

impl<B: Backend> SharedAccount<B> {
    /// Reserves the estimate from all levels, or from none, and waits only for the store's reply.
    ///
    /// # Errors
    /// [`SharedExceeded`], with the rule and limit that admit last. Without a rule: the store is
    /// [`Unavailable`](Reason::Unavailable), or the values of a level are too long for a name at it
    /// ([`Unkeyed`](Reason::Unkeyed)).
    ///
    /// # Cancel safety
    /// It may be dropped at any point. What it was granted goes back.
    pub async fn reserve(&self, estimate: impl Into<Ask>) -> Result<SharedMeter<B>, SharedExceeded> {
        Ok(SharedMeter {
            charges: self.take(estimate.into()).await?.into_iter().collect(),
            account: self.clone(),
            used: [0; MAX_COSTS],
        })
    }

    /// Takes `ask` in one step.
    async fn take(&self, ask: Ask) -> Result<Option<Held<B>>, SharedExceeded> {
        let Some(current) = self.keys()? else {
            return Ok(None);
        };
        let key = &current.key;
        let mut units = [0; MAX_COSTS];
        let costs = self.0.shared.costs.iter().zip(&mut units);
        costs.for_each(|(cost, units)| *units = ask.of(*cost).unwrap_or(0));
        let permit = key.acquire_now(ask).await;
        let permit = permit.map_err(|refusal| self.exceeded(key, &ask, &refusal))?;
        let spent = [0; MAX_COSTS];
        Ok(Some(Held { permit, units, spent }))
    }

    /// Asks the store what is used of each limit; `None` without a rule that matches. The legs are named by rule and limit, such as
    /// `user/output per 60s`, and those of a calendar by its period and zone as well, such as `team+month+UTC/output per month`. The
    /// state of a rate has what is [available](tollgate::status::State::Rate), so the limit less that is used; its window is the span for which
    /// the store remembers, two months for a month.
    ///
    /// # Errors
    /// As [`RemoteKey::usage`]; [`RemoteError::Key`] when the values of a level are too long for a name at the store.
    pub async fn usage(&self) -> Result<Option<RemoteKeyUsage>, RemoteError> {
        match self.current()? {
            Some(current) => current.key.usage().await.map(Some),
            None => Ok(None),
        }
    }

    fn keys(&self) -> Result<Option<Arc<Current<B>>>, SharedExceeded> {
        self.current().map_err(|_| SharedExceeded {
            key: None,
            found: None,
            reason: Reason::Unkeyed,
            asked: 0,
            retry_after: None,
        })
    }

    /// The keys in the current periods; `None` without a level.
    fn current(&self) -> Result<Option<Arc<Current<B>>>, RemoteError> {
        let AccountState {
            shared,
            values,
            current,
        } = &*self.0;
        let now = nanos_of(&shared.clock, shared.clock.now());
        let began: Vec<i128> = values
            .iter()
            .filter_map(|(level, _)| shared.levels[*level].borders.as_ref())
            .map(|borders| borders.lock().started(now, || since_1970(shared.clock.wall())))
            .collect();
        let mut current = current.lock();
        if let Some(current) = current.as_ref().filter(|current| current.began == began) {
            return Ok(Some(Arc::clone(current)));
        }
        let mut starts = began.iter();
        let name = |(level, values): &(usize, String)| {
            let level = &shared.levels[*level];
            match level.borders.as_ref().and_then(|_| starts.next()) {
                Some(start) => (&*level.name, format!("{values}+{}", start / 1_000_000_000)),
                None => (&*level.name, values.clone()),
            }
        };
        let keys: Vec<(&str, String)> = values.iter().map(name).collect();
        let keys: Vec<_> = keys.iter().map(|(level, key)| (*level, &**key)).collect();
        if keys.is_empty() {
            return Ok(None);
        }
        let key = shared.limits.get_all(&keys)?;
        // A handle of the limiter, of which this account has others: nothing ends with it.
        *current = Some(Arc::new(Current { began, key }));
        Ok(current.clone())
    }

    /// The level and the limit of a leg.
    fn limit_of(&self, leg: &str) -> Option<(&Level, &Limit)> {
        let levels = self.0.shared.levels.iter();
        let limits = levels.flat_map(|level| level.limits.iter().map(move |limit| (level, limit)));
        let name = |level: &Level, limit: &Limit| format!("{}/{}", level.name, leg_name(limit));
        let is = |(level, limit): &(&Level, &Limit)| name(level, limit) == leg;
        // A name made at run time may have been cut.
        let starts = |(level, limit): &(&Level, &Limit)| *LegName::copied(&name(level, limit)) == *leg;
        limits.clone().find(is).or_else(|| limits.clone().find(starts))
    }

    fn exceeded(&self, key: &RemoteKey<B>, ask: &Ask, refusal: &Refusal) -> SharedExceeded {
        let shared = &self.0.shared;
        let found = self.limit_of(refusal.leg());
        let until_end = found.and_then(|(level, _)| {
            let (clock, now) = (&shared.clock, shared.clock.now());
            let ends = level
                .borders
                .as_ref()?
                .lock()
                .at(nanos_of(clock, now), || since_1970(clock.wall()))
                .ends;
            Some(clock.between(now, instant_of(clock, ends)))
        });
        let waits = refusal.reason() == Reason::RateExceeded;
        let asked = match found.map(|(_, limit)| limit.measure) {
            Some(Measure::Cost(cost)) => ask.of(cost).unwrap_or(0),
            _ => ask.count(),
        };
        SharedExceeded {
            key: key.key_of(refusal.leg()).cloned(),
            found: found.map(|(level, limit)| (level.rule.name.clone(), limit.clone())),
            reason: refusal.reason(),
            asked,
            // The next period is another key.
            retry_after: until_end.filter(|_| waits).or_else(|| refusal.retry_after()),
        }
    }
}

impl<B: Backend> Clone for SharedAccount<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> Clone for SharedBudgets<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> fmt::Debug for SharedBudgets<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedBudgets").field(&self.0.limits).finish()
    }
}

impl<B: Backend> fmt::Debug for SharedAccount<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedAccount").field(&self.0.values).finish()
    }
}

/// A charge that a meter can correct.
struct Held<B: Backend> {
    permit: RemoteKeyPermit<B>,
    /// The units of each cost, and what of them was metered.
    units: [u64; MAX_COSTS],
    spent: [u64; MAX_COSTS],
}

/// The meter of a request that was admitted by [`SharedBudgets`]. Dropped, it ends the request: what was metered stays charged, and the
/// rest of the reservation comes back.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::{Ask, ManualClock};
/// # use tollgate::remote::{Key, Memory};
/// # use tollgate_budget::{Limit, OUTPUT, Period, Rule, SharedBudgets};
/// let clock = ManualClock::new();
/// let rule = Rule::new("all").limit(Limit::cost(OUTPUT, 100, Period::Rolling(Duration::from_secs(60))));
/// let budgets = SharedBudgets::builder(Key::new("budgets")?).rule(rule).on(&clock).in_place(Memory::new(&clock))?;
/// clock.run(async {
///     let all = budgets.account(&[]);
///     let mut meter = all.reserve(Ask::one().cost(OUTPUT, 50)).await.unwrap();
///     assert!(meter.extend(OUTPUT, 80).await.is_ok());
///     // 30 more than are left: they were produced, so they stay charged, and the stream is to stop.
///     assert!(meter.extend(OUTPUT, 50).await.is_err());
///     assert_eq!(meter.used(OUTPUT), 130);
///     // The bill says less.
///     meter.settle(OUTPUT, 60);
///     drop(meter);
///     assert!(all.reserve(Ask::one().cost(OUTPUT, 40)).await.is_ok());
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a meter ends the request, and gives back what was not metered"]
pub struct SharedMeter<B: Backend> {
    account: SharedAccount<B>,
    /// The reservation, then each charge beyond it. Empty without a rule that matches.
    charges: Vec<Held<B>>,
    used: [u64; MAX_COSTS],
}

impl<B: Backend> SharedMeter<B> {
    /// The number of a cost that is counted.
    fn number_of(&self, cost: Cost) -> Option<usize> {
        let mut costs = self.account.0.shared.costs.iter();
        costs
            .position(|known| *known == cost)
            .filter(|_| !self.charges.is_empty())
    }

    fn held(&self, number: usize) -> u64 {
        let held = self.charges.iter().map(|charge| charge.units[number]);
        held.fold(0, u64::saturating_add)
    }

    /// The units of `cost` that were metered so far.
    pub fn used(&self, cost: Cost) -> u64 {
        self.number_of(cost).map_or(0, |number| self.used[number])
    }

    /// Charges `units` more of `cost`: from the reservation while that lasts, without the store, and then in one step of the store over all
    /// levels. Charge a stream in parts: each charge beyond the reservation is a round trip, and stays here until the meter ends.
    ///
    /// # Errors
    /// [`SharedExceeded`] when a hard limit has no room: the stream is to stop. The units have been produced, so they stay charged.
    ///
    /// # Cancel safety
    /// The units are metered when it is first polled. If it is dropped, they are charged at the next change of this meter, or at its end.
    pub async fn extend(&mut self, cost: Cost, units: u64) -> Result<(), SharedExceeded> {
        let Some(number) = self.number_of(cost) else {
            return Ok(());
        };
        self.used[number] = self.used[number].saturating_add(units);
        let missing = self.used[number].saturating_sub(self.held(number));
        if missing == 0 {
            self.spend(number);
            return Ok(());
        }
        let ask = |missing| {
            let costs = self.account.0.shared.costs.iter();
            costs.fold(Ask::many(0), |ask, other| {
                ask.cost(*other, if *other == cost { missing } else { 0 })
            })
        };
        match self.account.take(ask(missing)).await {
            Ok(charge) => {
                self.charges.extend(charge);
                self.spend(number);
                Ok(())
            }
            Err(exceeded) => {
                // The units are of this instant, and of its period, where nothing is never refused.
                let charge = self.account.take(ask(0)).await;
                self.charges.extend(charge.ok().flatten());
                self.correct(number);
                Err(exceeded)
            }
        }
    }

    /// Corrects the charge for `cost` to `actual` units in all, as if they had been metered. What is missing is charged whether there is
    /// room or not. Returns those units: the excess over what was reserved.
    pub fn settle(&mut self, cost: Cost, actual: u64) -> u64 {
        let Some(number) = self.number_of(cost) else { return 0 };
        let excess = actual.saturating_sub(self.held(number));
        self.used[number] = actual;
        self.correct(number);
        excess
    }

    /// Charges what was metered of one cost. The last units come back first.
    fn correct(&mut self, number: usize) {
        let cost = self.account.0.shared.costs[number];
        let (held, used) = (self.held(number), self.used[number]);
        let (mut surplus, missing) = (held.saturating_sub(used), used.saturating_sub(held));
        for (at, charge) in self.charges.iter_mut().rev().enumerate() {
            let units = &mut charge.units[number];
            let before = *units;
            let back = surplus.min(before);
            surplus -= back;
            *units -= back;
            if at == 0 {
                *units = units.saturating_add(missing);
            }
            if *units != before {
                // A cost that no limit of this account counts is not charged.
                let _ = charge.permit.settle(cost, *units);
            }
        }
        self.spend(number);
    }

    /// Notes what was metered of one cost as used: of the charges in order.
    fn spend(&mut self, number: usize) {
        let cost = self.account.0.shared.costs[number];
        let mut left = self.used[number];
        for charge in &mut self.charges {
            let (metered, spent) = (left.min(charge.units[number]), &mut charge.spent[number]);
            left -= metered;
            if metered > *spent {
                charge.permit.spend(cost, metered - *spent);
            }
            *spent = metered;
        }
    }
}

impl<B: Backend> Drop for SharedMeter<B> {
    fn drop(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        for number in 0..self.account.0.shared.costs.len() {
            // A waker that is called for what came back may panic, and two panics would abort.
            let corrected = catch_unwind(AssertUnwindSafe(|| self.correct(number)));
            if let Err(panic) = corrected {
                if !std::thread::panicking() {
                    resume_unwind(panic);
                }
            }
        }
    }
}

impl<B: Backend> fmt::Debug for SharedMeter<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMeter")
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

/// A shared budget has no room, or its store cannot be reached.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::{Ask, ManualClock};
/// # use tollgate::remote::{Key, Memory};
/// # use tollgate_budget::{Limit, OUTPUT, Period, Rule, SharedBudgets};
/// let clock = ManualClock::new();
/// let limit = Limit::cost(OUTPUT, 100, Period::Rolling(Duration::from_secs(64)));
/// let budgets = SharedBudgets::builder(Key::new("budgets")?).rule(Rule::new("user").per(["user"]).limit(limit));
/// let budgets = budgets.on(&clock).in_place(Memory::new(&clock))?;
/// clock.run(async {
///     let ann = budgets.account(&[("user", "ann")]);
///     let meter = ann.reserve(Ask::one().cost(OUTPUT, 90)).await.unwrap();
///     let refused = ann.reserve(Ask::one().cost(OUTPUT, 20)).await.unwrap_err();
///     assert_eq!(
///         refused.to_string(),
///         "budget user of budgets:user:ann: 20 output asked, of 100 output per 64s; retry after 65s"
///     );
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedExceeded {
    key: Option<Key>,
    found: Option<(String, Limit)>,
    reason: Reason,
    asked: u64,
    retry_after: Option<Duration>,
}

impl SharedExceeded {
    /// The name of the rule; `None` when the store was not asked.
    pub fn rule(&self) -> Option<&str> {
        self.found.as_ref().map(|(rule, _)| &**rule)
    }

    /// The limit that has no room.
    pub fn limit(&self) -> Option<&Limit> {
        self.found.as_ref().map(|(_, limit)| limit)
    }

    /// The level, by its key at the store.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// `RateExceeded`, or `Saturated` for calls in flight; `Oversized` for more than the limit, `Unpriced` for a cost that was not named;
    /// without a rule `Unavailable`, `QueueFull` or `Closed`.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// The units that were asked for.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// The time after which all limits have room, if nothing else is admitted meanwhile. `None` when that takes the end of another
    /// request, or when no instant helps.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for SharedExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.found, &self.key) {
            (Some((rule, limit)), Some(key)) => {
                let (asked, measure) = (self.asked, limit.measure());
                write!(f, "budget {rule} of {key}: {asked} {measure} asked, of {limit}")?;
            }
            _ => write!(f, "shared budgets: {:?}", self.reason)?,
        }
        write_retry_after(f, self.retry_after)
    }
}

impl std::error::Error for SharedExceeded {}
