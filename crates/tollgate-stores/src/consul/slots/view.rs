//! The folder of a limiter with slots, its change by a sync, and the keys to be written for that. No I/O.

use crate::consul::api::Entry;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tollgate::remote::{Grant, Request, StoreError, SyncReply, SyncRequest, Usage};

/// The value of `at/limit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    pub(super) limit: u64,
    /// Never the same twice: Consul ignores a write that changes nothing.
    pub(super) nonce: String,
}

/// The value of `by/<session>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Life {
    pub(super) nonce: String,
    seq: u64,
    returned: u64,
    asked: u64,
    /// Its waiting requests, in order.
    pending: Vec<Pending>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    #[serde(rename = "wish")]
    request: u64,
    need: u64,
    want: u64,
    /// The number of a write at which it was there. A request that does not wait comes after all others.
    since: u64,
}

/// A request that does not wait.
const TRIES: u64 = u64::MAX;

/// The value of `at/<number>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Slot {
    /// The request of the session that it was locked for.
    #[serde(rename = "wish")]
    pub(super) request: u64,
}

/// A locked slot: its owner, its request, and its write.
#[derive(Clone, Debug)]
struct Taken {
    owner: String,
    request: u64,
    index: u64,
}

/// A waiting request of another session, in order: since when, its name, its id, and its need.
type Waits = (u64, String, u64, u64);

/// The folder at one instant.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// With the number of the write. `None` before it was first written.
    limit: Option<(u64, u64)>,
    /// That of our own session.
    life: Option<(Life, u64)>,
    /// The name of our own session.
    name: String,
    /// The number of other sessions, and their waiting requests.
    others: u64,
    others_wait: BTreeSet<Waits>,
    /// One of them: its name, and its id in Consul.
    other: Option<(String, String)>,
    taken: BTreeMap<u64, Taken>,
    /// Slots that are free, and cannot be locked yet.
    delayed: BTreeSet<u64>,
    /// A write that is not later than the read.
    version: u64,
}

/// The keys that go with a session that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) life: u64,
    pub(super) slots: Vec<u64>,
    /// The limit, by its write: it goes with the last session.
    pub(super) limit: Option<u64>,
    /// Others may have been kept back, and would not notice.
    pub(super) rings: bool,
    /// The session that must still be there, since the limit is left to it: its name, and its id in Consul.
    pub(super) other: Option<(String, String)>,
}

/// The condition or change of `at/limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// It does not matter.
    Any,
    /// It must be as this write left it.
    Same(u64),
    /// It becomes this, if that write was its last.
    Set(u64, u64),
}

/// What is written, all or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Our own, and the write that it replaces; none when it is new.
    pub(super) life: Life,
    pub(super) replaces: Option<u64>,
    pub(super) bound: Bound,
    pub(super) freed: Vec<u64>,
    pub(super) locked: Vec<u64>,
    /// The request that gets the slots.
    pub(super) request: u64,
    /// The limit is lowered: slots above it may have been taken since the read, so it has to be read again.
    pub(super) lowers: bool,
    /// Others may have been kept back by a withdrawn request, and would not notice.
    pub(super) rings: bool,
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
    /// Parses the keys in `folder` at the write `version`. `name` is our session's, and `id` its id in Consul; without an id we
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
                let (owner, request, index) = (owner.clone(), read::<Slot>(entry)?.request, entry.index);
                view.taken.insert(number, Taken { owner, request, index });
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
                    let waits = waits.map(|pending| (pending.since, session.to_owned(), pending.request, pending.need));
                    view.others_wait.extend(waits);
                }
            } else if !(key.is_empty() || key.starts_with("at/") || key.starts_with("by/")) {
                // A document, most likely: its grants are in no slot.
                return Err(foreign(entry));
            }
        }
        Ok(view)
    }

    pub(super) fn is_there(&self) -> bool {
        self.life.is_some()
    }

    /// The number of other requests before ours; `None` when we do not wait.
    pub(super) fn place(&self) -> Option<usize> {
        let (life, _) = self.life.as_ref()?;
        let first = life.pending.first()?;
        let others: BTreeSet<_> = self.ahead(first).map(|(_, name, ..)| name).collect();
        Some(others.len())
    }

    /// The requests of others that come before this one.
    fn ahead(&self, pending: &Pending) -> impl Iterator<Item = &Waits> {
        let us = (pending.since, self.name.clone());
        let waits = self.others_wait.iter();
        waits.take_while(move |(since, name, ..)| (*since, name) < (us.0, &us.1))
    }

    fn ours<'a>(&'a self, id: &'a str) -> impl Iterator<Item = (u64, &'a Taken)> {
        let ours = self.taken.iter().filter(move |(_, taken)| taken.owner == id);
        ours.map(|(&number, taken)| (number, taken))
    }

    /// Records that these locks of `change` are held back. False when none of them is among it.
    pub(super) fn delay(&mut self, change: &Change, places: impl Iterator<Item = usize>) -> bool {
        let before = self.delayed.len();
        self.delayed.extend(places.filter_map(|place| change.locked.get(place)));
        self.delayed.len() > before
    }

    /// Records that `change` was written, by the write `index`.
    pub(super) fn apply(&mut self, change: Change, id: &str, index: u64) {
        for number in &change.freed {
            self.taken.remove(number);
        }
        for number in change.locked {
            let (owner, request) = (id.to_owned(), change.request);
            self.taken.insert(number, Taken { owner, request, index });
        }
        if let Bound::Set(limit, _) = change.bound {
            self.limit = Some((limit, index));
        }
        self.life = Some((change.life, index));
        self.version = index;
    }

    /// The keys that go with our session; `None` when it is gone.
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

    /// Removes our session.
    pub(super) fn leave(&mut self, id: &str) {
        self.life = None;
        self.taken.retain(|_, taken| taken.owner != id);
    }

    /// The reply to a sync; `limit` is that of its limiter.
    pub(super) fn reply(&self, sync: &SyncRequest, limit: u64, id: Option<&str>) -> SyncReply {
        let ours = self.life.as_ref().map_or(0, |(life, _)| life.pending.len() as u64);
        let usage = Usage {
            limit: self.limit.map_or(limit, |(limit, _)| limit),
            in_use: self.taken.len() as u64,
            waiting: self.others_wait.len() as u64 + ours,
            sessions: self.others + u64::from(self.is_there()),
        };
        let Some(id) = id.filter(|_| self.is_there()) else {
            return SyncReply {
                usage,
                ..SyncReply::default()
            };
        };
        let mut grants: BTreeMap<u64, Grant> = BTreeMap::new();
        for (
            _,
            &Taken {
                request, index: token, ..
            },
        ) in self.ours(id)
        {
            if token > sync.seen {
                let grant = grants.entry(token).or_insert(Grant {
                    request,
                    units: 0,
                    token,
                });
                grant.units += 1;
            }
        }
        SyncReply {
            alive: true,
            grants: grants.into_values().collect(),
            others_wait: !self.others_wait.is_empty(),
            usage,
            ..SyncReply::default()
        }
    }
}

impl View {
    /// The next change by a sync of our session, which Consul calls `id`; `None` when nothing is left to change. One request is
    /// granted at a time, since each grant needs a write of its own for its token. If it `queues`, new requests are written
    /// before slots are taken for them.
    pub(super) fn next(&self, sync: &SyncRequest, limit: u64, id: &str, queues: bool) -> Option<Change> {
        let replaces = self.life.as_ref().map(|&(_, index)| index);
        let mut life = self.life.as_ref().map(|(life, _)| life.clone()).unwrap_or_default();
        let before = life.clone();
        // There is no other session, and no slot in use: it is as if unused.
        let fresh = replaces.is_none() && self.others == 0 && self.taken.is_empty();
        let (mut now, mut index) = self.limit.filter(|_| !fresh).unwrap_or((limit, 0));
        index = self.limit.map_or(index, |(_, index)| index);
        // A newcomer writes the limit anew, so that no end deletes it.
        let mut sets = replaces.is_none();
        let mut freed = Vec::new();
        let (mut revokes, mut rings) = (false, false);
        if sync.seq > life.seq {
            life.seq = sync.seq;
            // An earlier sync may still arrive: it does nothing if our key is another one then.
            revokes = sync.limit.is_some() || sync.withdrawn.iter().any(|&request| request > life.asked);
            if let Some(limit) = sync.limit.filter(|&limit| limit != now) {
                (now, sets) = (limit, true);
            }
            let held = self.ours(id).count() as u64;
            let returned = sync.returned.clamp(life.returned, life.returned.saturating_add(held));
            freed = self.oldest(id, (returned - life.returned) as usize);
            life.returned = returned;
            let waited = life.pending.len();
            life.pending
                .retain(|pending| !sync.withdrawn.contains(&pending.request));
            rings = life.pending.len() < waited && !self.others_wait.is_empty();
            for &Request {
                id: request,
                need,
                want,
                queue,
            } in &sync.requests
            {
                if request > life.asked {
                    life.asked = request;
                    // A request above the limit is refused; so is one that does not wait, behind those that do.
                    if need <= now && (queue || life.pending.is_empty()) {
                        let since = if queue { self.version } else { TRIES };
                        life.pending.push(Pending {
                            request,
                            need,
                            want: want.max(need),
                            since,
                        });
                    }
                }
            }
        }
        let lowers = sets && !fresh && self.limit.is_some_and(|(limit, _)| now < limit);
        let new = replaces.is_none() || life.pending != before.pending;
        let asks = life.clone();
        let (mut locked, mut request) = (Vec::new(), 0);
        if !(lowers || queues && new) {
            (locked, request) = self.grant(&mut life, now, &freed);
        }
        if locked.len() + freed.len() > super::MOST as usize {
            // More than one write fits: the next takes the slots that are free then.
            (locked, life) = (Vec::new(), asks);
        }
        // Slots above the limit count as well, and sessions that lock lower ones do not see them: so grants go one after the
        // other.
        let drains = self.taken.keys().any(|&number| number >= now);
        let bound = if sets || drains && !locked.is_empty() {
            Bound::Set(now, index)
        } else if locked.is_empty() {
            Bound::Any
        } else {
            Bound::Same(index)
        };
        let said = Life {
            seq: before.seq,
            ..life.clone()
        } != before;
        // Writes to slots or the limit wake the others anyway.
        rings &= freed.is_empty() && locked.is_empty() && bound == Bound::Any;
        let change = replaces.is_none() || said || revokes || bound != Bound::Any || !freed.is_empty();
        change.then_some(Change {
            life,
            replaces,
            bound,
            freed,
            locked,
            request,
            lowers,
            rings,
        })
    }

    /// Takes the first pending request out, if it fits, and returns its slots. A request that does not wait is forgotten.
    fn grant(&self, life: &mut Life, limit: u64, freed: &[u64]) -> (Vec<u64>, u64) {
        let in_use = (self.taken.len() - freed.len()) as u64;
        let delayed = self
            .delayed
            .range(..limit)
            .filter(|number| !self.taken.contains_key(number));
        let room = limit.saturating_sub(in_use).saturating_sub(delayed.count() as u64);
        let free = (0..limit).filter(|number| !self.delayed.contains(number));
        let is_free = |number: &u64| !self.taken.contains_key(number) || freed.contains(number);
        // Consul lets a session lock again what it has locked.
        let free = free.filter(|number| is_free(number));
        // Leaves what earlier requests need, unless they need more than there is.
        let kept = life.pending.first().map_or(0, |first| self.kept(first, limit));
        let room = room.saturating_sub(kept);
        let fits = life.pending.first().is_some_and(|first| first.need <= room);
        if !fits {
            life.pending.retain(|pending| pending.since != TRIES);
            return (Vec::new(), 0);
        }
        let first = life.pending.remove(0);
        let sessions = self.others + 1;
        // Units wanted beyond the need: half an equal share at a time, for fairness.
        let most = if sessions == 1 {
            room
        } else {
            (limit / (2 * sessions)).max(first.need)
        };
        let units = first.want.min(most).min(room) as usize;
        let free: Vec<u64> = free.collect();
        // Sessions that begin at one place collide.
        let begin = if free.is_empty() {
            0
        } else {
            usize::from(life.nonce_seed(&self.name)) % free.len()
        };
        let locked = (0..units).map(|sync| free[(begin + sync) % free.len()]).collect();
        (locked, first.request)
    }

    /// The needs of earlier requests. Of equal requests of one sync only one counts: a session takes slots by one write for
    /// each, and slots left for all of them would lie idle while it is slow or stopped.
    fn kept(&self, pending: &Pending, limit: u64) -> u64 {
        let ahead = self.ahead(pending).filter(|(.., need)| *need <= limit);
        let needs: BTreeSet<_> = ahead.map(|(since, name, _, need)| (since, name, need)).collect();
        needs.iter().map(|(.., need)| **need).sum()
    }

    /// Our slots, oldest lock first.
    fn oldest(&self, id: &str, many: usize) -> Vec<u64> {
        let mut ours: Vec<_> = self.ours(id).map(|(number, taken)| (taken.index, number)).collect();
        ours.sort_unstable();
        ours.into_iter().take(many).map(|(_, number)| number).collect()
    }
}

impl Life {
    /// Differs from session to session, and from write to write.
    fn nonce_seed(&self, name: &str) -> u16 {
        let bytes = self.nonce.bytes().chain(name.bytes());
        bytes.fold(7, |sum: u16, byte| sum.wrapping_mul(31).wrapping_add(byte.into()))
    }
}
