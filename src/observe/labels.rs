//! Which names of legs are labels.
//!
//! A recorder keeps a counter for each label that it was ever told, so there must not be many, and none of them may be what a
//! client has sent. Names of legs are words of the program as a rule; but a limiter that is made for a key can be named by it.

use crate::sync::shim::Mutex;
use std::collections::BTreeSet;

/// The label of all legs that have none of their own.
const OTHER: &str = "other";

/// How many names are labels where nobody has said which.
const MOST: usize = 31;

/// The names that are labels.
pub(super) struct Labels {
    /// Only these, if that was said.
    only: Option<&'static [&'static str]>,
    /// Those that came first.
    first: Mutex<BTreeSet<Box<str>>>,
}

impl Labels {
    pub(super) fn new(only: Option<&'static [&'static str]>) -> Self {
        Self {
            only,
            first: Mutex::new(BTreeSet::new()),
        }
    }

    /// The label of `leg`: its name, or that of all others.
    pub(super) fn of<'a>(&self, leg: &'a str) -> &'a str {
        let is_label = match self.only {
            Some(only) => only.contains(&leg),
            None => {
                let mut first = self.first.lock();
                first.contains(leg) || (first.len() < MOST && first.insert(leg.into()))
            }
        };
        if is_label { leg } else { OTHER }
    }
}
