//! Rates and windows that many machines share. A bucket has no queue: tokens that are not there yet are granted for later, in
//! the order of requests. A window has one: a session that finds too little learns when to ask again, and keeps its place as
//! long as it does so. Later places, and requests that do not wait, get the rest.
//!
//! Sessions are only remembered so that a repeated sync takes nothing twice.

use super::bucket::{Bucket, Fill};
use super::{Outcome, micros, next_token};
use crate::rate::{Even, Inherit, Limited as _, Machine as _, Ring};
use crate::remote::backend::{Grant, Request, Rule, Session, SyncReply, SyncRequest, Usage};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The least time for earlier waiters to ask, in microseconds.
const PACE: u64 = 1_000;

/// The rate or the window of a key.
// Invariants: `dues` has the expiry of each taker; each place in the queue is of a taker.
#[derive(Debug)]
pub(crate) struct Rates {
    /// The taken tokens.
    meter: Meter,
    /// The present rule, which is that of the meter.
    rule: Rule,
    /// Above zero once the rule was changed while it was used.
    edition: u64,
    /// The instant of the last sync.
    asked_at: u64,
    /// The token of the last grant.
    token: u64,
    /// The sessions.
    takers: BTreeMap<Session, Taker>,
    /// Sessions that wait for a window, in order. Each is a taker.
    queue: Vec<Place>,
    now: u64,
    dues: BTreeSet<(u64, Session)>,
    /// The limit was raised for the waiters.
    is_raised: bool,
}

/// The meter of [`Rates`]: a bucket, or a window in [`Rule::SEGMENTS`] segments.
#[derive(Debug)]
pub(crate) enum Meter {
    Bucket(Bucket, Fill),
    Window(Ring<Even<true>>, Duration),
}

/// A session of [`Rates`].
#[derive(Debug, Default)]
struct Taker {
    /// When it expires.
    expires: u64,
    /// The number of its last sync.
    seq: u64,
    /// The units that it has [charged](SyncRequest::charged), in total.
    charged: u64,
    /// The highest id of a granted request so far.
    asked: u64,
    /// Grants that the client has not seen.
    grants: Vec<Grant>,
    /// When the last of its grants may be used.
    due: u64,
}

/// The place of a session in the queue of a window. It has at most one, for any of its requests.
#[derive(Debug)]
struct Place {
    /// The session.
    session: Session,
    /// The request.
    request: u64,
    /// The units that it needs.
    need: u64,
}

impl Meter {
    /// A full bucket, or an empty window.
    pub(crate) fn new(rule: &Rule, now: u64) -> Self {
        match rule {
            Rule::Rate { quota } => {
                let fill = Fill::of(quota).unwrap_or(Fill {
                    price: 1,
                    gain: 1,
                    brim: 0,
                });
                Self::Bucket(Bucket::full(now), fill)
            }
            Rule::Permits { limit } => Self::window(now, *limit, Duration::ZERO),
            Rule::Window { limit, length } => Self::window(now, *limit, *length),
        }
    }

    fn window(now: u64, limit: u64, length: Duration) -> Self {
        let segments = Rule::SEGMENTS as usize;
        let borders = Even::in_ticks(now, segments, segment(length));
        Self::Window(Ring::new(now, borders, limit), length)
    }

    /// Adopts another rule; taken tokens stay taken.
    pub(crate) fn adopt(&mut self, rule: &Rule) {
        match (self, rule) {
            (Meter::Bucket(bucket, fill), Rule::Rate { quota }) => {
                let new = Fill::of(quota).unwrap_or(*fill);
                if new != *fill {
                    bucket.convert(fill, &new);
                    *fill = new;
                }
            }
            (Meter::Window(window, _), Rule::Window { limit, .. }) if window.standing().limit != *limit => {
                window.set_limit(*limit, Inherit::AsIs);
            }
            _ => {}
        }
    }

    /// Advances the time.
    pub(crate) fn advance(&mut self, now: u64) {
        match self {
            Meter::Bucket(bucket, fill) => bucket.advance(fill, now),
            Meter::Window(window, _) => window.advance(now),
        }
    }

    fn free(&self) -> u64 {
        match self {
            Meter::Bucket(bucket, fill) => bucket.free(fill),
            Meter::Window(window, _) => window.free(),
        }
    }

    /// Takes `n` tokens, whether they are there or not.
    pub(crate) fn take(&mut self, n: u64) {
        match self {
            Meter::Bucket(bucket, fill) => bucket.take(fill, n),
            Meter::Window(window, _) => {
                window.take(n);
            }
        }
    }

    /// Returns in how many microseconds `n` fit; `None` when they never do.
    pub(crate) fn wait(&self, n: u64) -> Option<u64> {
        match self {
            Meter::Bucket(bucket, fill) => bucket.wait(fill, n),
            Meter::Window(window, _) => Some(window.ready(n, 0)?.saturating_sub(window.now())),
        }
    }

    /// The same, behind waiters that need `ahead` of a window. Never at once: those have to ask first.
    fn wait_behind(&self, n: u64, ahead: u64) -> Option<u64> {
        match self {
            Meter::Window(window, length) if ahead > 0 => {
                let wait = window.ready(n, ahead)?.saturating_sub(window.now());
                Some(wait.max(segment(*length)).max(PACE))
            }
            _ => self.wait(n),
        }
    }

    pub(crate) fn fits(&self, n: u64) -> bool {
        n <= self.free()
    }

    /// Takes `n` tokens of the future, and returns in how many microseconds they will have come, if that is possible.
    fn reserve(&mut self, n: u64) -> Option<u64> {
        match self {
            Meter::Bucket(bucket, fill) => bucket.reserve(fill, n),
            Meter::Window(..) => None,
        }
    }

    fn has_queue(&self) -> bool {
        matches!(self, Meter::Window(..))
    }

    fn limit(&self) -> u64 {
        match self {
            Meter::Bucket(_, fill) => fill.burst(),
            Meter::Window(window, _) => window.standing().limit,
        }
    }

    fn is_as_new(&self, now: u64) -> bool {
        match self {
            Meter::Bucket(bucket, fill) => bucket.is_full(fill, now),
            Meter::Window(window, _) => window.standing().fresh_at.is_some_and(|at| at.ticks() <= now),
        }
    }
}

/// The length of a segment of a window of this length, in microseconds.
pub fn segment(length: Duration) -> u64 {
    micros(length).div_ceil(Rule::SEGMENTS).max(1)
}

impl Rates {
    /// A full bucket or an empty window, and no session. Tokens are greater than `token`.
    pub(crate) fn new(rule: &Rule, now: u64, token: u64) -> Self {
        Self {
            meter: Meter::new(rule, now),
            rule: *rule,
            edition: 0,
            asked_at: now,
            token,
            takers: BTreeMap::new(),
            queue: Vec::new(),
            now,
            dues: BTreeSet::new(),
            is_raised: false,
        }
    }

    /// True when it is for a rule of this kind, and for a window of this length.
    pub(crate) fn fits(&self, rule: &Rule) -> bool {
        match (&self.meter, rule) {
            (Meter::Bucket(..), Rule::Rate { .. }) => true,
            (Meter::Window(_, length), Rule::Window { length: other, .. }) => length == other,
            _ => false,
        }
    }

    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// True when it may be forgotten without a loss: it is as good as new.
    pub(crate) fn is_empty(&self, now: u64) -> bool {
        let known = self.edition > 0 && now < self.asked_at.saturating_add(micros(Rule::REMEMBERED));
        self.takers.is_empty() && self.meter.is_as_new(now) && !known
    }

    /// Advances the time, and ends the sessions that have expired.
    pub(crate) fn sweep(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(&(_, session)) = self.dues.first().filter(|(due, _)| *due <= self.now) {
            self.end(session);
        }
        self.meter.advance(self.now);
    }

    /// Carries out `sync`, of a client that was set up with `rule`, at the instant `now`.
    pub(crate) fn sync(&mut self, now: u64, rule: &Rule, sync: &SyncRequest) -> Outcome {
        self.sweep(now);
        self.asked_at = self.now;
        let session = sync.session;
        let mut reply = SyncReply {
            differs: sync.edition == self.edition
                && self.rule != *rule
                && self.takers.keys().any(|&taker| taker != session),
            ..SyncReply::default()
        };
        if sync.edition >= self.edition {
            self.adopt(sync.edition, rule);
        }
        if sync.end {
            self.end(session);
        } else if sync.begin || self.takers.contains_key(&session) {
            reply.alive = true;
            reply.again = self.apply(sync).map(Duration::from_micros);
            let taker = self.takers.entry(session).or_default();
            reply
                .grants
                .extend(taker.grants.iter().filter(|grant| grant.token > sync.seen));
            if !reply.grants.is_empty() && taker.due > self.now {
                reply.again = Some(Duration::from_micros(taker.due - self.now));
            }
        }
        if reply.alive && self.edition > sync.edition {
            reply.rule = Some((self.edition, self.rule));
        }
        let (limit, free) = (self.meter.limit(), self.meter.free());
        reply.usage = Usage {
            limit,
            in_use: limit - free.min(limit),
            waiting: self.queue.len() as u64,
            sessions: self.takers.len() as u64,
        };
        let raised = std::mem::take(&mut self.is_raised);
        let notify = self.queue.iter().map(|place| place.session);
        Outcome {
            reply,
            notify: notify.filter(|other| raised && *other != session).collect(),
        }
    }

    /// Adopts the rule of the latest edition.
    fn adopt(&mut self, edition: u64, rule: &Rule) {
        self.meter.adopt(rule);
        (self.rule, self.edition) = (*rule, edition);
    }

    /// Ends a session.
    pub(crate) fn end(&mut self, session: Session) {
        if let Some(taker) = self.takers.remove(&session) {
            self.dues.remove(&(taker.expires, session));
        }
        self.leave(session);
    }

    fn leave(&mut self, session: Session) {
        self.queue.retain(|place| place.session != session);
    }

    /// The needs of the places before this request of `session`, and those of all other sessions.
    fn needed(&self, session: Session, request: &Request) -> (u64, u64) {
        let need = |place: &Place| place.need;
        let own = self.queue.iter().position(|place| place.session == session);
        let before = own.filter(|_| request.queue).unwrap_or(self.queue.len());
        let others = self.queue.iter().filter(|place| place.session != session);
        (self.queue[..before].iter().map(need).sum(), others.map(need).sum())
    }

    /// Takes a place at the end of the queue, or keeps the present one.
    fn enqueue(&mut self, session: Session, request: &Request) {
        let Request { id: request, need, .. } = *request;
        let new = Place { session, request, need };
        match self.queue.iter_mut().find(|place| place.session == session) {
            Some(place) => *place = new,
            None => self.queue.push(new),
        }
    }

    /// Carries out the new parts of `sync`. Returns in how many microseconds the first request fits that does not.
    fn apply(&mut self, sync: &SyncRequest) -> Option<u64> {
        let taker = self.takers.entry(sync.session).or_default();
        if sync.seq <= taker.seq {
            return None;
        }
        self.dues.remove(&(taker.expires, sync.session));
        taker.seq = sync.seq;
        taker.expires = self.now.saturating_add(micros(sync.ttl));
        self.dues.insert((taker.expires, sync.session));
        let debt = sync.charged.saturating_sub(taker.charged);
        taker.charged = taker.charged.max(sync.charged);
        taker.grants.retain(|grant| grant.token > sync.seen);
        self.meter.take(debt);
        // A change counts if its client knows the latest edition. Otherwise another change came first, maybe this one under
        // another number.
        let is_latest = sync.edition >= self.edition;
        if let Some(rule) = sync.change.filter(|rule| self.fits(rule) && is_latest) {
            let before = self.meter.limit();
            self.adopt(next_token(self.edition, self.now), &rule);
            let limit = self.meter.limit();
            // A waiter that needs more than that is refused when it asks again, and blocks no other until then.
            self.queue.retain(|place| place.need <= limit);
            self.is_raised = limit > before;
        }
        let session = sync.session;
        if !sync.requests.iter().any(|request| request.queue) {
            let gone = |place: &Place| place.session == session && sync.withdrawn.contains(&place.request);
            self.queue.retain(|place| !gone(place));
        }
        for request in sync.requests.iter() {
            if self.takers.get(&session).is_some_and(|taker| request.id <= taker.asked) {
                continue;
            }
            let (ahead, others) = self.needed(session, request);
            let (free, want) = (self.meter.free(), request.want.max(request.need));
            let fits = request.need.saturating_add(ahead) <= free;
            let units = if fits {
                want.min(free.saturating_sub(others)).max(request.need)
            } else {
                want.min(self.meter.limit()).max(request.need)
            };
            let wait = if fits {
                self.meter.take(units);
                Some(0)
            } else if request.queue {
                self.meter.reserve(units)
            } else {
                None
            };
            let Some(wait) = wait else {
                let again = self.meter.wait_behind(request.need, ahead);
                if request.queue && again.is_some() && self.meter.has_queue() {
                    self.enqueue(session, request);
                }
                return again;
            };
            if request.queue {
                self.leave(session);
            }
            let taker = self.takers.entry(session).or_default();
            taker.due = self.now.saturating_add(wait);
            taker.asked = request.id;
            self.token = next_token(self.token, self.now);
            let token = self.token;
            taker.grants.push(Grant {
                request: request.id,
                units,
                token,
            });
        }
        None
    }
}
