//! The arguments, answers and messages of scripts.

use std::time::Duration;
use tollgate::remote::model::{Fill, segment};
use tollgate::remote::{Grant, LegUsage, Rule, Step, StepRefusal, StepReply, StoreError, SyncReply, Usage};

/// The answer of a script.
pub(crate) struct Answer(pub(crate) Vec<String>);

impl Answer {
    pub(crate) fn word(&self, at: usize) -> Result<&str, StoreError> {
        self.0.get(at).map(String::as_str).ok_or_else(|| self.nonsense())
    }

    pub(crate) fn number(&self, at: usize) -> Result<u64, StoreError> {
        self.word(at)?.parse().map_err(|_| self.nonsense())
    }

    fn micros(&self, at: usize) -> Result<Option<Duration>, StoreError> {
        if self.word(at)?.is_empty() {
            return Ok(None);
        }
        self.number(at).map(|micros| Some(Duration::from_micros(micros)))
    }

    fn grants(&self, from: usize) -> Result<Vec<Grant>, StoreError> {
        let grants = (from..self.0.len()).step_by(3).map(|at| {
            Ok(Grant {
                request: self.number(at)?,
                units: self.number(at + 1)?,
                token: self.number(at + 2)?,
            })
        });
        grants.collect()
    }

    /// The reply of the script for permits.
    pub(crate) fn of_permits(&self) -> Result<SyncReply, StoreError> {
        Ok(SyncReply {
            alive: self.number(0)? == 1,
            others_wait: self.number(1)? == 1,
            again: self.micros(2)?,
            usage: Usage {
                limit: self.number(3)?,
                in_use: self.number(4)?,
                waiting: self.number(5)?,
                sessions: self.number(6)?,
            },
            floor: self.number(7)?,
            rule: None,
            differs: false,
            grants: self.grants(9)?,
            age: Duration::ZERO,
        })
    }

    /// The reply of the script for steps.
    pub(crate) fn of_step(&self, legs: usize, step: &Step, has_lease: bool) -> Result<StepReply, StoreError> {
        let count = step.takes.len();
        let takes = (0..count).map(|take| {
            Ok(match self.number(1 + 2 * take)?.checked_sub(1) {
                None => Ok(()),
                Some(leg) => Err(StepRefusal {
                    leg: usize::try_from(leg).map_err(|_| self.nonsense())?,
                    after: self.micros(2 + 2 * take)?,
                }),
            })
        });
        let first = 1 + 2 * count + 2 * usize::from(has_lease);
        let usage = (0..legs).map(|leg| first + 3 * leg).map(|leg| {
            Ok(LegUsage {
                in_use: self.number(leg)?,
                after: self.micros(leg + 1)?,
                waiting: self.number(leg + 2)?,
            })
        });
        // A late copy of a step has none.
        let usage = usage.take_while(|_| step.grant.is_some() && self.word(first).is_ok());
        Ok(StepReply {
            at: self.number(0)?,
            lost: has_lease && self.word(1 + 2 * count).is_ok_and(|lost| lost == "1"),
            takes: takes.collect::<Result<_, _>>()?,
            usage: usage.collect::<Result<_, _>>()?,
        })
    }

    /// The reply of the script for rates or windows, of the kind of `known`.
    pub(crate) fn of_rates(&self, known: &Rule) -> Result<SyncReply, StoreError> {
        Ok(SyncReply {
            alive: self.number(0)? == 1,
            others_wait: false,
            again: self.micros(1)?,
            usage: Usage {
                limit: self.number(2)?,
                in_use: self.number(3)?,
                waiting: self.number(8)?,
                sessions: 0,
            },
            floor: 0,
            rule: match self.word(4)? {
                "" => None,
                _ => Some((self.number(4)?, self.rule(known)?)),
            },
            differs: self.number(9)? == 1,
            grants: self.grants(10)?,
            age: Duration::ZERO,
        })
    }

    /// The rule in an answer, of the kind of `known`.
    fn rule(&self, known: &Rule) -> Result<Rule, StoreError> {
        let [one, two, three] = [self.number(5)?, self.number(6)?, self.number(7)?];
        let rule = match *known {
            Rule::Window { length, .. } => Some(Rule::Window { limit: one, length }),
            _ => Fill {
                price: one,
                gain: two,
                brim: three,
            }
            .quota()
            .map(|quota| Rule::Rate { quota }),
        };
        rule.ok_or_else(|| self.nonsense())
    }

    pub(crate) fn nonsense(&self) -> StoreError {
        StoreError::Answer {
            given: format!("{:?}", self.0).into(),
        }
    }
}

/// The arguments of the scripts for rates and windows.
pub(crate) fn numbers(rule: &Rule) -> Result<[u64; 3], StoreError> {
    let numbers = match rule {
        Rule::Window { limit, length } => Some([*limit, segment(*length), Rule::SEGMENTS]),
        Rule::Rate { quota } => Fill::of(quota).map(|fill| [fill.price, fill.gain, fill.brim]),
        _ => None,
    };
    numbers.ok_or_else(|| {
        let why = format!("no store counts by {rule:?}").into();
        StoreError::Refused { why }
    })
}
