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

/// The permits of a key. Sessions hold units, and all requests that wait stand in one queue.
///
/// ```
/// use std::time::Duration;
/// use tollgate::remote::model::Permits;
/// use tollgate::remote::{Request, Session, SyncRequest};
///
/// let session = Session { client: 7, number: 1 };
/// let mut sync = SyncRequest::first(session, Duration::from_secs(10));
/// sync.requests.push(Request { id: 1, need: 2, want: 2, queue: true });
///
/// let mut permits = Permits::new(3, 0);
/// let granted = permits.sync(1_000, &sync).reply;
/// assert_eq!((granted.grants[0].units, granted.usage.in_use), (2, 2));
///
/// // A store writes the state down, and reads it again before the next sync.
/// let mut permits = Permits::restore(permits.state().clone()).expect("a state that makes sense");
/// permits.end(session);
/// assert!(permits.state().sessions.is_empty());
/// ```
// Invariants: `used` is the sum of the units of all sessions; `dues` has the expiry of each; `places` and the queue name the
// same requests; the first in the queue does not fit.
#[derive(Debug)]
pub struct Permits {
    state: PermitsState,
    used: u64,
    now: u64,
    dues: BTreeSet<(u64, Session)>,
    places: BTreeMap<(Session, u64), u64>,
    /// The tokens of the oldest grants of sessions that hold units.
    oldest: BTreeSet<u64>,
    /// Sessions that got a grant in this sync, or with a request above a lowered limit.
    notify: Vec<Session>,
}

/// The state of [`Permits`], as plain data.
///
/// ```
/// # use tollgate::remote::model::{Permits, PermitsState};
/// let state = PermitsState { limit: 3, token: 41, ..PermitsState::default() };
/// let permits = Permits::restore(state.clone()).expect("it is a state");
/// assert_eq!(permits.state(), &state);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermitsState {
    /// The number of permits.
    pub limit: u64,
    /// The token of the last grant.
    pub token: u64,
    /// The place of the next request in the queue.
    pub next_place: u64,
    /// The sessions.
    pub sessions: BTreeMap<Session, Held>,
    /// The requests that wait, by place.
    pub queue: BTreeMap<u64, Queued>,
}

/// A session of [`Permits`].
///
/// ```
/// # use tollgate::remote::model::Permits;
/// # use tollgate::remote::{Request, Session, SyncRequest};
/// # use std::time::Duration;
/// let (mut permits, session) = (Permits::new(3, 0), Session { client: 7, number: 0 });
/// let mut sync = SyncRequest::first(session, Duration::from_secs(10));
/// sync.requests.push(Request { id: 1, need: 2, want: 2, queue: false });
/// permits.sync(1_000, &sync);
/// let held = &permits.state().sessions[&session];
/// assert_eq!((held.granted, held.returned, held.expires), (2, 0, 10_001_000));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// When it expires.
    pub expires: u64,
    /// The number of its last sync.
    pub seq: u64,
    /// The units granted to it, in total.
    pub granted: u64,
    /// The units that it returned, in total.
    pub returned: u64,
    /// The highest id of a request so far.
    pub asked: u64,
    /// Grants that the client has not seen.
    pub grants: Vec<Grant>,
    /// It [keeps](SyncRequest::keeps) units without a use for them.
    pub keeps: bool,
    /// The token of the oldest grant with units held.
    pub oldest: Option<u64>,
}

/// A request that waits for [`Permits`].
///
/// ```
/// # use tollgate::remote::model::Permits;
/// # use tollgate::remote::{Request, Session, SyncRequest};
/// # use std::time::Duration;
/// let (mut permits, session) = (Permits::new(1, 0), Session { client: 7, number: 0 });
/// let mut sync = SyncRequest::first(session, Duration::from_secs(10));
/// sync.requests.push(Request { id: 1, need: 1, want: 1, queue: false });
/// sync.requests.push(Request { id: 2, need: 1, want: 1, queue: true });
/// permits.sync(1_000, &sync);
/// let queued = permits.state().queue.values().next().expect("it waits");
/// assert_eq!((queued.session, queued.request, queued.need), (session, 2, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Its session.
    pub session: Session,
    /// Its id.
    pub request: u64,
    /// The least number of units.
    pub need: u64,
    /// The most units.
    pub want: u64,
}

impl Permits {
    /// `limit` permits, and no session. Tokens are greater than `token`.
    pub fn new(limit: u64, token: u64) -> Self {
        Self {
            state: PermitsState {
                limit,
                token,
                ..PermitsState::default()
            },
            used: 0,
            now: 0,
            dues: BTreeSet::new(),
            places: BTreeMap::new(),
            oldest: BTreeSet::new(),
            notify: Vec::new(),
        }
    }

    /// Goes on from `state`. `None` when it contradicts itself: a session has returned more than it got, or a request waits
    /// twice, without a session, or behind the next place.
    pub fn restore(state: PermitsState) -> Option<Self> {
        let mut permits = Self::new(0, 0);
        for (&session, held) in &state.sessions {
            permits.used = permits.used.checked_add(held.granted.checked_sub(held.returned)?)?;
            permits.dues.insert((held.expires, session));
            permits.oldest.extend(held.oldest);
        }
        for (&place, queued) in &state.queue {
            let new = permits.places.insert((queued.session, queued.request), place).is_none();
            if !new || place >= state.next_place || !state.sessions.contains_key(&queued.session) {
                return None;
            }
        }
        Some(Self { state, ..permits })
    }

    /// The state.
    pub fn state(&self) -> &PermitsState {
        &self.state
    }

    pub(super) fn token(&self) -> u64 {
        self.state.token
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.sessions.is_empty()
    }

    pub(super) fn notification(&self, session: Session) -> Notification {
        let alive = self.state.sessions.contains_key(&session);
        let reply = self.answer(&SyncRequest::first(session, Duration::ZERO), alive);
        if reply.grants.is_empty() {
            Notification::Sync
        } else {
            Notification::Reply(reply)
        }
    }

    fn free(&self) -> u64 {
        self.state.limit.saturating_sub(self.used)
    }

    /// Ends the sessions that have expired by `now`, and grants their units to waiters.
    pub(super) fn sweep(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(&(_, session)) = self.dues.first().filter(|(due, _)| *due <= self.now) {
            self.end(session);
        }
        self.grant_waiting();
    }

    /// Carries out `sync` at the instant `now`, in microseconds. Tokens are at least as great as `now`.
    pub fn sync(&mut self, now: u64, sync: &SyncRequest) -> Outcome {
        let last = self.state.token;
        self.sweep(now);
        let waited = !self.state.queue.is_empty();
        let alive = self.apply(sync, last);
        self.grant_waiting();
        let mut notify = std::mem::take(&mut self.notify);
        if !waited && !self.state.queue.is_empty() {
            let keepers = self
                .state
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
        if self.state.sessions.get(&session).is_some_and(forgot) {
            self.end(session);
        }
        if !self.state.sessions.contains_key(&session) && !sync.begin {
            return false;
        }
        let held = self.state.sessions.entry(session).or_default();
        if sync.seq <= held.seq {
            return true;
        }
        self.state.limit = sync.limit.unwrap_or(self.state.limit);
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
                self.state.queue.remove(&place);
            }
        }
        self.grant_waiting();
        for request in &sync.requests {
            let held = self.state.sessions.entry(session).or_default();
            if request.id <= held.asked {
                continue;
            }
            held.asked = request.id;
            let fits = self.state.queue.is_empty() && request.need <= self.state.limit.saturating_sub(self.used);
            if request.queue && request.need <= self.state.limit || fits {
                let place = self.state.next_place;
                self.state.next_place += 1;
                self.places.insert((session, request.id), place);
                let (request, need, want) = (request.id, request.need, request.want.max(request.need));
                self.state.queue.insert(
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

    /// Ends a session. Its units are granted with the next sync.
    pub fn end(&mut self, session: Session) {
        let Some(held) = self.state.sessions.remove(&session) else {
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
            self.state.queue.remove(&place);
        }
    }

    /// Grants from the front of the queue as long as permits suffice.
    fn grant_waiting(&mut self) {
        while let Some(head) = self.state.queue.first_entry() {
            let need = head.get().need;
            if need > self.state.limit.saturating_sub(self.used) {
                let session = head.get().session;
                // The limit was lowered below its need: its client is notified, and withdraws it.
                if need > self.state.limit && !self.notify.contains(&session) {
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
            let share = self.state.limit / (2 * self.state.sessions.len() as u64).max(1);
            let most = if self.state.sessions.len() == 1 {
                free
            } else {
                share.max(need)
            };
            let units = want.min(most).min(free);
            self.used += units;
            self.state.token = next_token(self.state.token, self.now);
            if let Some(held) = self.state.sessions.get_mut(&session) {
                held.granted += units;
                let token = self.state.token;
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
            limit: self.state.limit,
            in_use: self.used,
            waiting: self.state.queue.len() as u64,
            sessions: self.state.sessions.len() as u64,
        };
        let floor = self.oldest.first().copied().unwrap_or(self.state.token + 1);
        let held = self.state.sessions.get(&sync.session).filter(|_| alive);
        let Some(held) = held else {
            return SyncReply {
                floor,
                usage,
                ..SyncReply::default()
            };
        };
        // Requests are sorted by their sessions.
        let ends = [self.places.first_key_value(), self.places.last_key_value()];
        let is_other = |((session, _), _): (&(Session, u64), _)| *session != sync.session;
        let mut front = self.state.queue.values().take(MAX_LOOKOUTS);
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
            others_wait: ends.into_iter().flatten().any(is_other),
            again: again.map(|due| Duration::from_micros(due.0.saturating_sub(self.now))),
            floor,
            rule: None,
            differs: false,
            usage,
            age: Duration::ZERO,
        }
    }
}
