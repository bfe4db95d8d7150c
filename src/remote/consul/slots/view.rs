//! What is in the folder of a limiter with slots, what a step makes of it, and what has to be written for that. Nothing here
//! speaks to the store.

mod change;

use crate::remote::backend::{Census, Grant, Reply, Step, StoreError};
use crate::remote::consul::agent::Entry;
pub(super) use change::{Bound, Change};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What stands under `at/limit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    pub(super) limit: u64,
    /// Never the same twice: Consul takes a write of what is there for none.
    pub(super) nonce: String,
}

/// What stands under `by/<session>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Life {
    pub(super) nonce: String,
    seq: u64,
    returned: u64,
    asked: u64,
    /// What it waits for, in order.
    pending: Vec<Pending>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    wish: u64,
    need: u64,
    want: u64,
    /// It was there when the store was at this write. One that only tries is behind everybody.
    since: u64,
}

/// One that only tries.
const TRIES: u64 = u64::MAX;

/// What stands under `at/<number>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Slot {
    /// For which of the session's wishes it was locked.
    pub(super) wish: u64,
}

/// A slot that is locked: by whom, for what, and by which write.
#[derive(Clone, Debug)]
struct Taken {
    owner: String,
    wish: u64,
    index: u64,
}

/// What another session waits for, in order: since when, its name, which wish, and how many it needs.
type Waits = (u64, String, u64, u64);

/// The folder at one instant.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// With the number of the write. `None` before anybody has said it.
    limit: Option<(u64, u64)>,
    /// Our own session's.
    life: Option<(Life, u64)>,
    /// The name of our own session.
    name: String,
    /// How many other sessions there are, and what they wait for.
    others: u64,
    others_wait: BTreeSet<Waits>,
    /// One of them: its name, and what Consul calls it.
    other: Option<(String, String)>,
    taken: BTreeMap<u64, Taken>,
    /// Slots that are free, and cannot be locked yet.
    delayed: BTreeSet<u64>,
    /// A write that is not later than what was read.
    version: u64,
}

/// What has to go with a session that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) life: u64,
    pub(super) slots: Vec<u64>,
    /// The limit, by its write: it goes when nobody else is there.
    pub(super) limit: Option<u64>,
    /// Others may have been kept back, and would not hear of it.
    pub(super) rings: bool,
    /// Who must be there still, since the limit is left to it: its name, and what Consul calls it.
    pub(super) other: Option<(String, String)>,
}

fn read<T: DeserializeOwned>(entry: &Entry) -> Result<T, StoreError> {
    serde_json::from_slice(&entry.value).map_err(|_| foreign(entry))
}

fn foreign(entry: &Entry) -> StoreError {
    StoreError::Refused {
        why: format!("{} is not of a limiter with slots", entry.key).into(),
    }
}

impl View {
    /// Of the keys in `folder` at the write `version`. `name` is our session's, and `id` what Consul calls it; without an id we
    /// have none.
    pub(super) fn of(
        entries: &[Entry],
        version: u64,
        folder: &str,
        name: &str,
        id: Option<&str>,
    ) -> Result<Self, StoreError> {
        let mut view = Self {
            name: name.to_owned(),
            version,
            ..Self::default()
        };
        for entry in entries {
            let Some(key) = entry.key.strip_prefix(folder) else {
                continue;
            };
            if key == "at/limit" {
                let Limit { limit, .. } = read(entry)?;
                if limit > super::MOST {
                    return Err(foreign(entry));
                }
                view.limit = Some((limit, entry.index));
            } else if let (Some(slot), Some(owner)) = (key.strip_prefix("at/"), &entry.session) {
                let number = slot.parse().map_err(|_| foreign(entry))?;
                let (owner, wish, index) = (owner.clone(), read::<Slot>(entry)?.wish, entry.index);
                view.taken.insert(number, Taken { owner, wish, index });
            } else if let (Some(session), Some(owner)) = (key.strip_prefix("by/"), &entry.session) {
                let life: Life = read(entry)?;
                if life.pending.iter().any(|pending| pending.need > super::MOST) {
                    return Err(foreign(entry));
                }
                if session == name && Some(&**owner) == id {
                    view.life = Some((life, entry.index));
                } else {
                    view.others += 1;
                    view.other.get_or_insert_with(|| (session.to_owned(), owner.clone()));
                    let waits = life.pending.iter().filter(|pending| pending.since != TRIES);
                    let waits = waits.map(|pending| (pending.since, session.to_owned(), pending.wish, pending.need));
                    view.others_wait.extend(waits);
                }
            } else if !(seeded!("slots_share_with_a_document")
                || key.is_empty()
                || key.starts_with("at/")
                || key.starts_with("by/"))
            {
                // A document, most likely: what it has given out is in no slot.
                return Err(foreign(entry));
            }
        }
        Ok(view)
    }

    pub(super) fn is_there(&self) -> bool {
        self.life.is_some()
    }

    /// How many others come before us; `None` when we wait for nothing.
    pub(super) fn place(&self) -> Option<usize> {
        let (life, _) = self.life.as_ref()?;
        let first = life.pending.first()?;
        let others: BTreeSet<_> = self.ahead(first).map(|(_, name, ..)| name).collect();
        Some(others.len())
    }

    /// The wishes of others that come before this one.
    fn ahead(&self, pending: &Pending) -> impl Iterator<Item = &Waits> {
        let us = (pending.since, self.name.clone());
        let waits = self.others_wait.iter();
        waits.take_while(move |(since, name, ..)| (*since, name) < (us.0, &us.1))
    }

    fn ours<'a>(&'a self, id: &'a str) -> impl Iterator<Item = (u64, &'a Taken)> {
        let ours = self.taken.iter().filter(move |(_, taken)| taken.owner == id);
        ours.map(|(&number, taken)| (number, taken))
    }

    /// These of what `change` locks cannot be locked yet. False when none of them is among it.
    pub(super) fn delay(&mut self, change: &Change, places: impl Iterator<Item = usize>) -> bool {
        let before = self.delayed.len();
        self.delayed.extend(places.filter_map(|place| change.locked.get(place)));
        self.delayed.len() > before
    }

    /// `change` has been written, by the write `index`.
    pub(super) fn apply(&mut self, change: Change, id: &str, index: u64) {
        for number in &change.freed {
            self.taken.remove(number);
        }
        for number in change.locked {
            let (owner, wish) = (id.to_owned(), change.wish);
            self.taken.insert(number, Taken { owner, wish, index });
        }
        if let Bound::Set(limit, _) = change.bound {
            self.limit = Some((limit, index));
        }
        self.life = Some((change.life, index));
        self.version = index;
    }

    /// What goes with our session; `None` when it is gone.
    pub(super) fn leaving(&self, id: &str) -> Option<Leaving> {
        let (ours, life) = self.life.as_ref()?;
        let slots: Vec<_> = self.ours(id).map(|(number, _)| number).collect();
        let kept_back = !ours.pending.is_empty() && !self.others_wait.is_empty();
        let rings = kept_back && slots.is_empty();
        let limit = self.limit.filter(|_| self.others == 0);
        Some(Leaving {
            life: *life,
            slots,
            limit: limit.map(|(_, index)| index),
            rings,
            other: self.other.clone(),
        })
    }

    /// Our session has gone.
    pub(super) fn leave(&mut self, id: &str) {
        self.life = None;
        self.taken.retain(|_, taken| taken.owner != id);
    }

    /// The answer to a step, where `limit` is what it was built with.
    pub(super) fn reply(&self, step: &Step, limit: u64, id: Option<&str>) -> Reply {
        let ours = self.life.as_ref().map_or(0, |(life, _)| life.pending.len() as u64);
        let census = Census {
            limit: self.limit.map_or(limit, |(limit, _)| limit),
            in_use: self.taken.len() as u64,
            waiting: self.others_wait.len() as u64 + ours,
            sessions: self.others + u64::from(self.is_there()),
        };
        let Some(id) = id.filter(|_| self.is_there()) else {
            return Reply {
                census,
                ..Reply::default()
            };
        };
        let mut grants: BTreeMap<u64, Grant> = BTreeMap::new();
        for (_, &Taken { wish, index: token, .. }) in self.ours(id) {
            if token > step.seen {
                let grant = grants.entry(token).or_insert(Grant { wish, units: 0, token });
                grant.units += 1;
            }
        }
        Reply {
            alive: true,
            grants: grants.into_values().collect(),
            others_wait: !self.others_wait.is_empty(),
            census,
            ..Reply::default()
        }
    }
}
