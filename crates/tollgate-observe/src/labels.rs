//! Selects the names of legs that become labels.
//!
//! A recorder keeps a counter for each label for ever. So labels must be few, and no client may choose them. Names of legs are
//! constants of the program as a rule, but a limiter that is made for a key can be named by it.

use parking_lot::Mutex;
use std::collections::BTreeSet;

/// The label of all other legs.
const OTHER: &str = "other";

/// The number of names that become labels by default.
const MOST: usize = 31;

/// The names that are labels.
pub(super) struct Labels {
    /// Only these, if they were listed.
    only: Option<&'static [&'static str]>,
    /// The first names so far.
    first: Mutex<BTreeSet<Box<str>>>,
}

impl Labels {
    pub(super) fn new(only: Option<&'static [&'static str]>) -> Self {
        Self {
            only,
            first: Mutex::new(BTreeSet::new()),
        }
    }

    /// The label of `leg`: its name, or `other`.
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
