//! The answers and messages of scripts.

use std::time::Duration;
use tollgate::remote::model::Fill;
use tollgate::remote::{Grant, Rule, StoreError, SyncReply, Usage};

/// The answer of a script.
pub(super) struct Answer(pub(super) Vec<String>);

impl Answer {
    pub(super) fn word(&self, at: usize) -> Result<&str, StoreError> {
        self.0.get(at).map(String::as_str).ok_or_else(|| self.nonsense())
    }

    pub(super) fn number(&self, at: usize) -> Result<u64, StoreError> {
        self.word(at)?.parse().map_err(|_| self.nonsense())
    }

    pub(super) fn micros(&self, at: usize) -> Result<Option<Duration>, StoreError> {
        if self.word(at)?.is_empty() {
            return Ok(None);
        }
        self.number(at).map(|micros| Some(Duration::from_micros(micros)))
    }

    pub(super) fn grants(&self, from: usize) -> Result<Vec<Grant>, StoreError> {
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
    pub(super) fn of_permits(&self) -> Result<SyncReply, StoreError> {
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
            bound: false,
            age: Duration::ZERO,
        })
    }

    /// The replication id of the server, where the script for permits has read it.
    pub(super) fn replication_id(&self) -> Option<&str> {
        self.word(8).ok().filter(|replication_id| *replication_id != "-")
    }

    /// The rule in an answer, of the kind of `known`.
    pub(super) fn rule(&self, known: &Rule) -> Result<Rule, StoreError> {
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

    fn nonsense(&self) -> StoreError {
        StoreError::Answer {
            given: format!("{:?}", self.0).into(),
        }
    }
}
