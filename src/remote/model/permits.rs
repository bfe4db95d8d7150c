//! Permits that many machines share: sessions, their units, and one queue.
//!
//! Only sessions expire, with their units and their places in the queue. So others wait once for a dead machine, however many
//! permits and places it had.

use super::{Outcome, micros, next_token};
use crate::remote::backend::{Grant, Notification, Session, SyncReply, SyncRequest, Usage};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Sessions with a request this near to the front learn when the next other session expires: one of them will sync then.
const MAX_LOOKOUTS: usize = 64;

/// Invariants: `used` is the sum of the units of all sessions; `dues` has the expiry of each; `places` and `queue` name the
/// same requests; the first in the queue does not fit.
#[derive(Debug)]
pub(crate) struct Permits {
    pub(super) limit: u64,
    pub(super) used: u64,
    pub(super) token: u64,
    now: u64,
    pub(super) sessions: BTreeMap<Session, Held>,
    pub(super) dues: BTreeSet<(u64, Session)>,
    pub(super) queue: BTreeMap<u64, Queued>,
    pub(super) places: BTreeMap<(Session, u64), u64>,
    pub(super) next_place: u64,
    /// The tokens of the oldest grants of sessions that hold units.
    pub(super) oldest: BTreeSet<u64>,
    /// Sessions that got a grant in this sync, or with a request above a lowered limit.
    notify: Vec<Session>,
}

#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) expires: u64,
    pub(super) seq: u64,
    pub(super) granted: u64,
    pub(super) returned: u64,
    /// The highest id of a request so far.
    pub(super) asked: u64,
    /// Grants that the client has not seen.
    pub(super) grants: Vec<Grant>,
    pub(super) queued: u64,
    pub(super) keeps: bool,
    /// The token of the oldest grant with units held.
    pub(super) oldest: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Queued {
    pub(super) session: Session,
    pub(super) request: u64,
    pub(super) need: u64,
    pub(super) want: u64,
}

impl Permits {
    pub(crate) fn new(limit: u64, token: u64) -> Self {
        Self {
            limit,
            used: 0,
            token,
            now: 0,
            sessions: BTreeMap::new(),
            dues: BTreeSet::new(),
            queue: BTreeMap::new(),
            places: BTreeMap::new(),
            next_place: 0,
            oldest: BTreeSet::new(),
            notify: Vec::new(),
        }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub(super) fn notification(&self, session: Session) -> Notification {
        let alive = self.sessions.contains_key(&session);
        let reply = self.answer(&SyncRequest::first(session, Duration::ZERO), alive);
        if reply.grants.is_empty() {
            Notification::Sync
        } else {
            Notification::Reply(reply)
        }
    }

    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Ends the sessions that have expired by `now`, and grants their units to waiters.
    pub(crate) fn sweep(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(&(due, session)) = self.dues.first()
            && due <= self.now
        {
            self.end(session);
        }
        self.grant_waiting();
    }

    pub(crate) fn sync(&mut self, now: u64, sync: &SyncRequest) -> Outcome {
        let last = self.token;
        self.sweep(now);
        let waited = !self.queue.is_empty();
        let alive = self.apply(sync, last);
        self.grant_waiting();
        let mut notify = std::mem::take(&mut self.notify);
        if !waited && !self.queue.is_empty() {
            let keepers = self
                .sessions
                .iter()
                .filter(|(_, held)| held.keeps && held.granted > held.returned);
            notify.extend(keepers.map(|(session, _)| *session));
        }
        notify.retain(|session| *session != sync.session);
        let reply = self.answer(sync, alive);
        Outcome { reply, notify }
    }

    /// Carries out the new parts of `sync`; `last` is the last token before it. False when its session is unknown and does not
    /// begin.
    fn apply(&mut self, sync: &SyncRequest, last: u64) -> bool {
        let session = sync.session;
        if sync.end {
            self.end(session);
            return false;
        }
        // A part of the session was forgotten: an answered sync, or a grant that was reported.
        let forgot = |held: &Held| held.seq < sync.acked || sync.seen > last;
        if self.sessions.get(&session).is_some_and(forgot) {
            self.end(session);
        }
        if !self.sessions.contains_key(&session) && !sync.begin {
            return false;
        }
        let held = self.sessions.entry(session).or_default();
        if sync.seq <= held.seq {
            return true;
        }
        self.limit = sync.limit.unwrap_or(self.limit);
        self.dues.remove(&(held.expires, session));
        held.seq = sync.seq;
        held.expires = self.now.saturating_add(micros(sync.ttl));
        held.keeps = sync.keeps;
        held.grants.retain(|grant| grant.token > sync.seen);
        self.dues.insert((held.expires, session));
        let unseen = held.grants.first().map(|grant| grant.token);
        if let Some(token) = std::mem::replace(&mut held.oldest, sync.oldest.or(unseen)) {
            self.oldest.remove(&token);
        }
        self.oldest.extend(held.oldest);
        let returned = sync.returned.clamp(held.returned, held.granted);
        self.used -= returned - held.returned;
        held.returned = returned;
        for &request in &sync.withdrawn {
            if let Some(place) = self.places.remove(&(session, request)) {
                self.queue.remove(&place);
                held.queued -= 1;
            }
        }
        self.grant_waiting();
        for request in &sync.requests {
            let held = self.sessions.entry(session).or_default();
            if request.id <= held.asked {
                continue;
            }
            held.asked = request.id;
            let fits = self.queue.is_empty() && request.need <= self.limit.saturating_sub(self.used);
            if request.queue && request.need <= self.limit || fits {
                held.queued += 1;
                let place = self.next_place;
                self.next_place += 1;
                self.places.insert((session, request.id), place);
                let (request, need, want) = (request.id, request.need, request.want.max(request.need));
                self.queue.insert(
                    place,
                    Queued {
                        session,
                        request,
                        need,
                        want,
                    },
                );
                // At once, so that those behind find less.
                self.grant_waiting();
            }
        }
        true
    }

    pub(super) fn end(&mut self, session: Session) {
        let Some(held) = self.sessions.remove(&session) else {
            return;
        };
        self.dues.remove(&(held.expires, session));
        if let Some(token) = held.oldest {
            self.oldest.remove(&token);
        }
        self.used -= held.granted - held.returned;
        let requests = self.places.range((session, 0)..=(session, u64::MAX));
        let requests: Vec<_> = requests.map(|(&key, &place)| (key, place)).collect();
        for (key, place) in requests {
            self.places.remove(&key);
            self.queue.remove(&place);
        }
    }

    /// Grants from the front of the queue as long as permits suffice.
    fn grant_waiting(&mut self) {
        while let Some(head) = self.queue.first_entry() {
            let need = head.get().need;
            if need > self.limit.saturating_sub(self.used) {
                let session = head.get().session;
                // The limit was lowered below its need: its client is notified, and withdraws it.
                if need > self.limit && !self.notify.contains(&session) {
                    self.notify.push(session);
                }
                return;
            }
            let Queued {
                session,
                request,
                need,
                want,
            } = head.remove();
            self.places.remove(&(session, request));
            let free = self.free();
            // Units wanted beyond the need: half an equal share at a time, for fairness.
            let share = self.limit / (2 * self.sessions.len() as u64).max(1);
            let most = if self.sessions.len() == 1 {
                free
            } else {
                share.max(need)
            };
            let units = want.min(most).min(free);
            self.used += units;
            self.token = next_token(self.token, self.now);
            if let Some(held) = self.sessions.get_mut(&session) {
                held.queued -= 1;
                held.granted += units;
                let token = self.token;
                held.grants.push(Grant { request, units, token });
                if held.oldest.is_none() {
                    held.oldest = Some(token);
                    self.oldest.insert(token);
                }
            }
            self.notify.push(session);
        }
    }

    fn answer(&self, sync: &SyncRequest, alive: bool) -> SyncReply {
        let usage = Usage {
            limit: self.limit,
            in_use: self.used,
            waiting: self.queue.len() as u64,
            sessions: self.sessions.len() as u64,
        };
        let floor = self.oldest.first().copied().unwrap_or(self.token + 1);
        let held = self.sessions.get(&sync.session).filter(|_| alive);
        let Some(held) = held else {
            return SyncReply {
                floor,
                usage,
                ..SyncReply::default()
            };
        };
        let mut front = self.queue.values().take(MAX_LOOKOUTS);
        let looks_out = front.any(|queued| queued.session == sync.session);
        let mut others = self.dues.iter().filter(|due| due.1 != sync.session);
        let again = others.next().filter(|_| looks_out);
        SyncReply {
            alive: true,
            grants: held
                .grants
                .iter()
                .copied()
                .filter(|grant| grant.token > sync.seen)
                .collect(),
            others_wait: self.queue.len() as u64 > held.queued,
            again: again.map(|due| Duration::from_micros(due.0.saturating_sub(self.now))),
            floor,
            rule: None,
            differs: false,
            usage,
            bound: false,
            age: Duration::ZERO,
        }
    }
}
