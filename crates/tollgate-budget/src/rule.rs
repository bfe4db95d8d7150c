//! Rules as data: which requests a rule counts, by which dimensions it splits them, and its limits.

use crate::level::{SEGMENTS, Shape};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tollgate::Cost;

/// Tokens of the prompt.
pub const INPUT: Cost = Cost::new("input");
/// Tokens that the model produces.
pub const OUTPUT: Cost = Cost::new("output");
/// Money in nano-units: 1,000,000,000 is one unit of the currency.
pub const MONEY: Cost = Cost::new("money");

/// The period in which a limit counts.
///
/// ```
/// # use tollgate_budget::Period;
/// # use std::time::Duration;
/// assert_eq!(Period::Month.to_string(), "month");
/// assert_eq!(Period::Rolling(Duration::from_secs(90)).to_string(), "90s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// From full minute to full minute.
    Minute,
    /// From full hour to full hour of the universal time.
    Hour,
    /// From midnight to midnight, in the time zone of the limit.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the 1st to the 1st.
    Month,
    /// Any span of this length, from 1 ms to 366 days: no such span has more than the limit. A unit comes back when the length has
    /// passed, and at most a 16th of it later.
    Rolling(Duration),
}

impl Period {
    /// Those of the calendar.
    pub const CALENDAR: [Self; 5] = [Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month];
    const SHORTEST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_secs(366 * 86_400);
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minute => f.write_str("minute"),
            Self::Hour => f.write_str("hour"),
            Self::Day => f.write_str("day"),
            Self::Week => f.write_str("week"),
            Self::Month => f.write_str("month"),
            Self::Rolling(length) => write!(f, "{length:?}"),
        }
    }
}

/// What a limit counts.
///
/// ```
/// # use tollgate_budget::{Limit, Measure, OUTPUT, Period};
/// assert_eq!(Limit::requests(5, Period::Hour).measure(), Measure::Requests);
/// assert_eq!(Limit::cost(OUTPUT, 1_000, Period::Hour).measure(), Measure::Cost(OUTPUT));
/// assert_eq!((Limit::in_flight(3).amount(), Limit::in_flight(3).period()), (3, None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Calls, from their admission on.
    Requests,
    /// Calls that run: from their admission to their end.
    InFlight,
    /// The units of a cost.
    Cost(Cost),
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requests => "requests",
            Self::InFlight => "in flight",
            Self::Cost(cost) => cost.name(),
        })
    }
}

/// One limit of a [`Rule`]: at most an amount in each period.
///
/// ```
/// # use tollgate_budget::{Limit, MONEY, OUTPUT, Period};
/// let limit = Limit::cost(OUTPUT, 1_000, Period::Day).time_zone("Europe/Berlin");
/// assert_eq!(limit.to_string(), "1000 output per day");
/// assert_eq!(Limit::in_flight(4).to_string(), "4 in flight");
/// assert!(Limit::cost(MONEY, 5_000_000_000, Period::Month).soft().is_soft());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub(crate) measure: Measure,
    pub(crate) amount: u64,
    pub(crate) period: Option<Period>,
    pub(crate) time_zone: String,
    pub(crate) soft: bool,
}

impl Limit {
    pub(crate) fn new(measure: Measure, amount: u64, period: Option<Period>) -> Self {
        Self {
            measure,
            amount,
            period,
            time_zone: "UTC".to_owned(),
            soft: false,
        }
    }

    /// At most `amount` units of `cost` in each period.
    pub fn cost(cost: Cost, amount: u64, period: Period) -> Self {
        Self::new(Measure::Cost(cost), amount, Some(period))
    }

    /// At most `amount` calls in each period.
    pub fn requests(amount: u64, period: Period) -> Self {
        Self::new(Measure::Requests, amount, Some(period))
    }

    /// At most `amount` calls at once.
    pub fn in_flight(amount: u64) -> Self {
        Self::new(Measure::InFlight, amount, None)
    }

    /// Sets the time zone of days, weeks and months, by its IANA name; `UTC` by default.
    #[must_use]
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = name.into();
        self
    }

    /// Counts and reports, and never refuses.
    #[must_use]
    pub fn soft(mut self) -> Self {
        self.soft = true;
        self
    }

    /// What it counts.
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// The amount.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// The period; `None` for calls in flight.
    pub fn period(&self) -> Option<Period> {
        self.period
    }

    /// True when it never refuses.
    pub fn is_soft(&self) -> bool {
        self.soft
    }

    pub(crate) fn shape(&self) -> Shape {
        match self.period {
            None => Shape::Held,
            Some(Period::Rolling(length)) => {
                let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
                Shape::Rolling(nanos.div_ceil(SEGMENTS))
            }
            Some(_) => Shape::Calendar,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.amount, self.measure)?;
        match self.period {
            Some(period) => write!(f, " per {period}"),
            None => Ok(()),
        }
    }
}

/// A rule: the requests that it counts, the dimensions by which it splits them into levels, and the limits of each level.
///
/// A rule without [`per`](Self::per) has one level. With `per(["organisation", "user"])` it has one for each pair of values.
///
/// ```
/// # use tollgate_budget::{Limit, OUTPUT, Period, Rule};
/// let rule = Rule::new("large")
///     .when("model", "large")
///     .per(["organisation", "user"])
///     .limit(Limit::cost(OUTPUT, 10_000, Period::Day))
///     .limit(Limit::in_flight(2));
/// assert_eq!(rule.name(), "large");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(crate) name: String,
    pub(crate) per: Vec<String>,
    pub(crate) when: BTreeMap<String, String>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) borrows_from: Option<String>,
    pub(crate) weights: BTreeMap<String, u32>,
}

impl Rule {
    /// A rule that counts all requests, on one level, without a limit. The name is that of refusals and reports.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            per: Vec::new(),
            when: BTreeMap::new(),
            limits: Vec::new(),
            borrows_from: None,
            weights: BTreeMap::new(),
        }
    }

    /// Splits by these dimensions: each combination of their values has a level of its own. Requests without one of the dimensions
    /// share the level of the empty value, so that no request goes uncounted.
    #[must_use]
    pub fn per<D: Into<String>>(mut self, dimensions: impl IntoIterator<Item = D>) -> Self {
        self.per = dimensions.into_iter().map(Into::into).collect();
        self
    }

    /// Counts only requests whose `dimension` has this value. Of several conditions all must hold.
    #[must_use]
    pub fn when(mut self, dimension: impl Into<String>, value: impl Into<String>) -> Self {
        self.when.insert(dimension.into(), value.into());
        self
    }

    /// Adds a limit, which each level has.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Borrows from `parent`, a rule before this one: its costs are divided among the levels of this rule by weight, max-min fair.
    ///
    /// A level alone has all of its parent's amounts at once. Where several want more than there is, each is left its share by
    /// [weight](Self::weight), and the part that a modest one does not want goes to the others. An owner that comes back claims its
    /// share with its next reservation, from what others have reserved and not spent: their meters stop at their own shares.
    /// **Starvation**: what is spent comes back with the end of the period only, or as it is settled.
    ///
    /// So of a lent cost the parent's reservations may add up to more than the amount. What is metered does not, up to the largest
    /// single charge of each running stream. Calls, and soft limits, are counted and not lent. A permit of a policy counts as spent. A
    /// rule that borrows can lend on to one rule, and needs no limit of its own.
    ///
    /// A parent tells 1,024 children apart that have used it in a period; the others share one place of weight 1.
    ///
    /// # Performance
    /// While the parent's reservations fit its amount, a search among its children. Else an admission, or a charge, sorts them.
    /// [`Meter::extend`](crate::Meter::extend) locks the levels each time.
    ///
    /// ```
    /// use tollgate::Ask;
    /// use tollgate_budget::{Budgets, Limit, OUTPUT, Period, Rule};
    ///
    /// let limit = Limit::cost(OUTPUT, 1_000, Period::Day);
    /// let budgets = Budgets::builder()
    ///     .rule(Rule::new("organisation").per(["organisation"]).limit(limit))
    ///     .rule(Rule::new("team").per(["organisation", "team"]).borrows_from("organisation").weight("search", 3))
    ///     .build()?;
    /// let team = |name| budgets.account(&[("organisation", "acme"), ("team", name)]);
    /// // Alone: all of it.
    /// let mut batch = team("batch").reserve(Ask::one().cost(OUTPUT, 1_000)).unwrap();
    /// batch.extend(OUTPUT, 200).unwrap();
    /// // The other comes, and has its share at once.
    /// assert!(team("search").reserve(Ask::one().cost(OUTPUT, 751)).is_err());
    /// let mut search = team("search").reserve(Ask::one().cost(OUTPUT, 750)).unwrap();
    /// search.extend(OUTPUT, 750).unwrap();
    /// assert!(batch.extend(OUTPUT, 50).is_ok());
    /// assert!(batch.extend(OUTPUT, 1).is_err());
    /// # Ok::<(), tollgate_budget::BudgetError>(())
    /// ```
    #[must_use]
    pub fn borrows_from(mut self, parent: impl Into<String>) -> Self {
        self.borrows_from = Some(parent.into());
        self
    }

    /// Sets the weight, at least 1, of the levels with this value of the rule's last dimension; 1 by default. For a rule that
    /// [borrows](Self::borrows_from).
    #[must_use]
    pub fn weight(mut self, value: impl Into<String>, weight: u32) -> Self {
        self.weights.insert(value.into(), weight);
        self
    }

    /// The weight of a level.
    pub(crate) fn weight_of(&self, key: Option<&[Box<str>]>) -> u32 {
        let value = key.and_then(|values| values.last());
        value.and_then(|value| self.weights.get(&**value)).copied().unwrap_or(1)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks what can be checked of a rule alone.
    pub(crate) fn check(&self) -> Result<(), BudgetError> {
        let wrong = |what, given: &str, allowed| Err(BudgetError::new(&self.name, what, given, allowed));
        if self.name.is_empty() {
            return wrong("name", "", "a text");
        }
        if self.limits.is_empty() && self.borrows_from.is_none() {
            return wrong("limits", "none", "one or more");
        }
        if self.borrows_from.is_none() && !self.weights.is_empty() {
            return wrong("weights", "some", "none without `borrows_from`");
        }
        if self.weights.values().any(|weight| *weight == 0) {
            return wrong("weights", "0", "1 or more");
        }
        for (at, dimension) in self.per.iter().enumerate() {
            if self.per[..at].contains(dimension) {
                return wrong("per", dimension, "each dimension once");
            }
        }
        for limit in &self.limits {
            if let Some(Period::Rolling(length)) = limit.period {
                if !(Period::SHORTEST..=Period::LONGEST).contains(&length) {
                    return wrong("per", &format!("{length:?}"), "1 ms to 366 days");
                }
            }
            if crate::period::zone(&limit.time_zone).is_none() {
                return wrong(
                    "time_zone",
                    &limit.time_zone,
                    "a name of the IANA database such as `Europe/Berlin`",
                );
            }
        }
        Ok(())
    }
}

/// A rule that cannot be: its name, what was given, and what is allowed.
///
/// ```
/// # use tollgate_budget::{Budgets, Limit, OUTPUT, Period, Rule};
/// let rule = Rule::new("day").limit(Limit::cost(OUTPUT, 10, Period::Day).time_zone("Europe/Berlim"));
/// let error = Budgets::builder().rule(rule).build().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "rule `day`: `Europe/Berlim` was given for time_zone, and a name of the IANA database such as `Europe/Berlin` is allowed"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetError {
    rule: String,
    what: &'static str,
    given: String,
    allowed: &'static str,
}

impl BudgetError {
    pub(crate) fn new(rule: &str, what: &'static str, given: &str, allowed: &'static str) -> Self {
        Self {
            rule: rule.to_owned(),
            what,
            given: given.to_owned(),
            allowed,
        }
    }

    /// The name of the rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The setting that is wrong.
    pub fn setting(&self) -> &'static str {
        self.what
    }
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            what,
            given,
            allowed,
        } = self;
        write!(
            f,
            "rule `{rule}`: `{given}` was given for {what}, and {allowed} is allowed"
        )
    }
}

impl std::error::Error for BudgetError {}
