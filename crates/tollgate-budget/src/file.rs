//! Budgets in TOML.

use crate::budgets::{Budgets, BudgetsBuilder};
use crate::rule::{Limit, Measure, Period, Rule};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use tollgate::Cost;
use toml::Spanned;

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    max_levels: Option<Spanned<usize>>,
    #[serde(default)]
    rule: Vec<Spanned<RuleTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    name: Spanned<String>,
    #[serde(default)]
    per: Vec<String>,
    #[serde(default)]
    when: BTreeMap<String, String>,
    #[serde(default)]
    limit: Vec<Spanned<LimitTable>>,
    borrows_from: Option<String>,
    #[serde(default)]
    weights: BTreeMap<String, u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitTable {
    of: Spanned<String>,
    amount: u64,
    per: Option<Spanned<String>>,
    time_zone: Option<Spanned<String>>,
    #[serde(default)]
    soft: bool,
}

/// Why a text holds no budgets: the line and the column, what was given there, and what is allowed.
///
/// Printed as `budgets.toml:4:1: …`.
///
/// ```
/// # use tollgate_budget::Budgets;
/// let error = Budgets::parse("[[rule]]\nname = 'user'\npre = ['user']").unwrap_err();
/// assert_eq!(error.line(), Some(3), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetFileError {
    file: String,
    at: Option<(usize, usize)>,
    why: String,
}

impl BudgetFileError {
    fn at(text: &str, span: Option<Range<usize>>, why: impl Into<String>) -> Self {
        let at = span.map(|span| {
            let before = text.get(..span.start).unwrap_or(text);
            let start = before.rfind('\n').map_or(0, |newline| newline + 1);
            (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
        });
        Self {
            file: String::new(),
            at,
            why: why.into(),
        }
    }

    /// The line, from 1; `None` when the file could not be read.
    pub fn line(&self) -> Option<usize> {
        self.at.map(|at| at.0)
    }

    /// The column, from 1, in characters.
    pub fn column(&self) -> Option<usize> {
        self.at.map(|at| at.1)
    }
}

impl fmt::Display for BudgetFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.file.is_empty() { "budgets" } else { &self.file })?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.why)
    }
}

impl std::error::Error for BudgetFileError {}

impl Budgets {
    /// Reads rules from a text in TOML.
    ///
    /// | key | what |
    /// |---|---|
    /// | `max_levels` | see [`BudgetsBuilder::max_levels`] |
    /// | `[[rule]]` | a rule, in the order in which they are asked |
    /// | `name` | its name |
    /// | `per` | the dimensions by which it splits; none without it |
    /// | `when` | the values of dimensions that it counts; all without it |
    /// | `borrows_from`, `weights` | see [`Rule::borrows_from`], and the weights of values of its last dimension |
    /// | `[[rule.limit]]` | a limit of each level |
    /// | `of` | `"requests"`, `"in flight"`, or the name of a cost: `"input"`, `"output"`, `"money"` or another |
    /// | `amount` | the amount in each period, a whole number |
    /// | `per` | `"minute"`, `"hour"`, `"day"`, `"week"`, `"month"`, or the length of a rolling span such as `"10m"` |
    /// | `time_zone` | of days, weeks and months; `"UTC"` without it |
    /// | `soft` | true if it never refuses |
    ///
    /// # Errors
    /// [`BudgetFileError`]: the first mistake, with line and column. A key that means nothing is one.
    ///
    /// ```
    /// use tollgate::Ask;
    /// use tollgate_budget::{Budgets, OUTPUT};
    ///
    /// let budgets = Budgets::parse(
    ///     r#"
    ///     [[rule]]
    ///     name = "large models"
    ///     per = ["organisation", "user"]
    ///     when = { model = "large" }
    ///     limit = [
    ///         { of = "output", amount = 1_000, per = "day", time_zone = "Europe/Berlin" },
    ///         { of = "in flight", amount = 4 },
    ///     ]
    ///     "#,
    /// )?
    /// .build()?;
    /// let account = budgets.account(&[("organisation", "acme"), ("user", "ann"), ("model", "large")]);
    /// let refused = account.reserve(Ask::one().cost(OUTPUT, 1_001)).unwrap_err();
    /// assert_eq!(refused.limit().to_string(), "1000 output per day");
    ///
    /// let error = Budgets::parse("[[rule]]\nname = \"all\"\nlimits = []").unwrap_err();
    /// assert_eq!((error.line(), error.column()), (Some(3), Some(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(text: &str) -> Result<BudgetsBuilder, BudgetFileError> {
        let file: File =
            toml::from_str(text).map_err(|error| BudgetFileError::at(text, error.span(), error.message()))?;
        let mut builder = Self::builder();
        if let Some(max) = file.max_levels {
            if *max.get_ref() == 0 {
                return Err(BudgetFileError::at(
                    text,
                    Some(max.span()),
                    "0 was given, and at least 1 is allowed",
                ));
            }
            builder = builder.max_levels(max.into_inner());
        }
        let mut names = Vec::new();
        for table in file.rule {
            let (span, table) = (table.span(), table.into_inner());
            let (name_span, name) = (table.name.span(), table.name.into_inner());
            let mut rule = Rule::new(name).per(table.per);
            rule.when = table.when;
            (rule.borrows_from, rule.weights) = (table.borrows_from, table.weights);
            let mut places = Vec::new();
            for limit in table.limit {
                let (limit, place) = read_limit(text, limit)?;
                rule = rule.limit(limit);
                places.push(place);
            }
            let wrong = |place: Range<usize>, error: &dyn fmt::Display| {
                BudgetFileError::at(text, Some(place), error.to_string())
            };
            if let Err(error) = rule.check() {
                // A limit alone shows whether it is the wrong one.
                let mut limits = rule.limits.iter().zip(&places);
                let alone = |limit: &Limit| Rule {
                    limits: vec![limit.clone()],
                    ..Rule::new(&rule.name)
                };
                let place = limits.find(|(limit, _)| alone(limit).check().is_err());
                let place = place.map_or(span, |(_, place)| place.clone());
                return Err(wrong(place, &error));
            }
            builder = builder.rule(rule);
            names.push(name_span);
        }
        // What is wrong with the rules together.
        match builder.check() {
            Err((rule, error)) => Err(BudgetFileError::at(text, names.get(rule).cloned(), error.to_string())),
            Ok(_) => Ok(builder),
        }
    }

    /// Reads rules from a file: see [`parse`](Self::parse).
    ///
    /// # Errors
    /// [`BudgetFileError`]: it cannot be read, is longer than a mebibyte, or holds something else.
    pub fn read(path: impl AsRef<Path>) -> Result<BudgetsBuilder, BudgetFileError> {
        use std::io::Read;
        let path = path.as_ref();
        let read = || -> Result<BudgetsBuilder, BudgetFileError> {
            let mut bytes = Vec::new();
            let file = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
            file.map_err(|error| BudgetFileError::at("", None, error.to_string()))?;
            if bytes.len() as u64 > MAX_FILE {
                let why = format!("it is longer than the {MAX_FILE} bytes that are allowed");
                return Err(BudgetFileError::at("", None, why));
            }
            match std::str::from_utf8(&bytes) {
                Ok(text) => Self::parse(text),
                Err(error) => {
                    let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                    let end = good.len()..good.len();
                    Err(BudgetFileError::at(&good, Some(end), "a byte that is not UTF-8"))
                }
            }
        };
        read().map_err(|error| BudgetFileError {
            file: path.display().to_string(),
            ..error
        })
    }
}

/// A limit, and the place of what may be wrong with it as a whole: its period or its time zone.
fn read_limit(text: &str, table: Spanned<LimitTable>) -> Result<(Limit, Range<usize>), BudgetFileError> {
    let (span, table) = (table.span(), table.into_inner());
    let wrong = |place: Range<usize>, why: String| Err(BudgetFileError::at(text, Some(place), why));
    let measure = match table.of.get_ref().as_str() {
        "requests" => Measure::Requests,
        "in flight" => Measure::InFlight,
        "" => {
            let why =
                "an empty text was given, and `requests`, `in flight` or the name of a cost is allowed".to_owned();
            return wrong(table.of.span(), why);
        }
        cost => Measure::Cost(Cost::interned(cost)),
    };
    let period = match (&measure, &table.per) {
        (Measure::InFlight, None) => None,
        (Measure::InFlight, Some(per)) => {
            return wrong(per.span(), "calls in flight have no period: leave `per` out".to_owned());
        }
        (_, None) => return wrong(span, format!("`per` is missing: the period of `{measure}`")),
        (_, Some(per)) => Some(match period(per.get_ref()) {
            Some(period) => period,
            None => {
                let given = per.get_ref();
                let why = format!(
                    "`{given}` was given, and minute, hour, day, week, month or a time such as `10m` is allowed"
                );
                return wrong(per.span(), why);
            }
        }),
    };
    let mut limit = Limit::new(measure, table.amount, period);
    limit.soft = table.soft;
    let mut place = table.per.map_or(span, |per| per.span());
    if let Some(zone) = table.time_zone {
        place = zone.span();
        limit = limit.time_zone(zone.into_inner());
    }
    Ok((limit, place))
}

fn period(text: &str) -> Option<Period> {
    let named = Period::CALENDAR.into_iter().find(|period| period.to_string() == text);
    named.or_else(|| humantime::parse_duration(text).ok().map(Period::Rolling))
}
