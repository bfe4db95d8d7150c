//! The state of one process at a key, as a pure state machine: no I/O, no clock, no waking. Callers lock it, pass it the
//! instant, and wake the wakers that it collected once it is unlocked.
//!
//! This file has the state and its local side: acquiring and refunding, the waiters, the passing of time. [`sync`] is the exchange
//! with the store, and [`low_watermarks`] bounds the tokens that may come back.

#[cfg(tollgate_proofs)]
#[path = "../../../crates/proofs/tests/protocols/client_state.rs"]
pub(super) mod client_state;

mod capacity;
mod fallback;
#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle, tollgate_proofs))))]
mod laws;
mod loan;
mod low_watermarks;
mod places;
mod share;
mod sync;
mod ticket;
mod tokens;
mod units;
mod window_part;

use super::backend::{Rule, Session, StoreError, Usage};
use super::config::{Config, MAX_UNITS, OnUnavailable};
use super::fence::Fence;
use super::model::Fill;
use crate::core::refusal::Reason;
use crate::time::{Clock, Instant};
use capacity::Capacity;
use fallback::Fallback;
pub(super) use loan::{Loan, Returned};
pub(super) use places::Lack;
use places::PlaceWait;
pub(super) use share::UNITS;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;
use std::time::Duration;
pub(super) use sync::Action;
use sync::Change;
pub use ticket::RemoteTicket;
use ticket::{SHARED, UNCOUNTED};
use tokens::Tokens;
use units::Units;
use window_part::WindowPart;

#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub(super) struct Client {
    config: Config,
    clock: Clock,
    live: Option<LiveSession>,
    /// The number of the current session, or of the next one.
    term: u64,
    sessions: u64,
    /// Sessions that have ended here and whose end the store must still learn: with a sequence number, and the attempts so far.
    session_ends: VecDeque<(Session, u64, u32)>,
    /// The report of an end has failed: another sync goes first.
    ends_wait: bool,
    /// Sessions whose end the store knows, or whose end is no longer reported to it. Notifications for them are not awaited.
    ended_sessions: Vec<Session>,

    /// Of permits and leased rates.
    units: Units,
    /// No permit with a lower token is held.
    floor: u64,
    /// The leased part of a rate.
    capacity: Option<Capacity>,
    /// Of a rate or window by calls or blocks.
    tokens: Tokens,
    part: Option<WindowPart>,
    /// Tokens used beyond those taken, as far as the store does not know of them.
    debt: u64,

    /// Waiters for units that come to this process, in order.
    queue: BTreeMap<u64, Waiter>,
    /// Those that were served at the last of scarce tokens ask again, and share a request with the others: it waits until there are as
    /// many waiters as before, and at most until the instant.
    round: Option<(usize, Instant)>,
    /// The last tokens were waited for.
    are_scarce: bool,
    /// Waiters with a request of their own at the store.
    direct: BTreeMap<u64, Waiter>,
    ended: BTreeMap<u64, Ended>,
    next_key: u64,
    /// The waits of heads of policies, by the numbers of their places.
    places: BTreeMap<u64, PlaceWait>,

    requests: BTreeMap<u64, PendingRequest>,
    /// The request for the queue, if it is in `requests`; the first that no reply has answered; and the first of the direct waiters
    /// without a request.
    queue_request: u64,
    unanswered: u64,
    unrequested: u64,
    /// No waiter needs more.
    most_needed: u64,
    withdrawn: BTreeSet<u64>,
    next_request_id: u64,
    /// The request with a place in the store's queue for a window.
    window_place: Option<u64>,
    /// A rate has nothing to give before this.
    ask_at: Option<Instant>,
    /// Nothing is prefetched before this.
    fetch_at: Option<Instant>,
    /// When the next sync is due without another reason.
    look_at: Option<Instant>,

    /// Other sessions wait: from this instant on, units that become free here go to them.
    recall_at: Option<Instant>,

    last_error: Option<StoreError>,
    failing_since: Option<Instant>,
    retry_at: Option<Instant>,
    /// The store was declared unavailable.
    unavailable: bool,
    /// The store refuses for good, as far as is known. It is not unavailable then.
    misconfigured: bool,
    fallback: Fallback,
    /// When the first waiter is served from it.
    fallback_at: Option<Instant>,

    /// The edition of the rule in force here, and the change under way.
    edition: u64,
    change: Option<Change>,
    /// The number of the last change asked for, and of the last one that the store has carried out.
    changes: (u64, u64),
    /// The limit has changed, and watchers are not told yet.
    has_changed_limit: bool,
    closed: bool,
    stopped: bool,
    /// The process that created the client; whether this is a copy in a fork; and until when that answer holds.
    process: u32,
    is_fork: bool,
    known_until: Instant,

    usage: Option<(Usage, Instant)>,
    /// Another session uses another rule.
    differs: bool,
    pub(super) counters: Counters,

    watchers: BTreeMap<u64, Waker>,
    next_watcher: u64,
    /// The driver has work. If it has none, `driver` is its waker.
    driver_woken: bool,
    driver: Option<Waker>,
    /// Wakers to call once the lock is released.
    wakers: Vec<Waker>,
}

impl Client {
    pub(super) fn new(config: Config, clock: &Clock) -> Self {
        let now = clock.now();
        let micros = u64::try_from(clock.between(Instant::ZERO, now).as_micros()).unwrap_or(u64::MAX);
        let fill = match config.rule {
            Rule::Rate { quota } if config.capacity => Fill::of(&quota),
            _ => None,
        };
        Self {
            capacity: fill.map(|fill| Capacity::new(fill, now, micros)),
            fallback: Fallback::new(&config.rule),
            tokens: Tokens::new(clock, now),
            part: match config.rule {
                Rule::Window { length, .. } => Some(WindowPart::new(length, clock, now)),
                _ => None,
            },
            config,
            clock: clock.clone(),
            live: None,
            term: 1,
            sessions: 0,
            session_ends: VecDeque::new(),
            ends_wait: false,
            ended_sessions: Vec::new(),
            units: Units::default(),
            floor: 0,
            debt: 0,
            queue: BTreeMap::new(),
            round: None,
            are_scarce: false,
            direct: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_key: 1,
            places: BTreeMap::new(),
            requests: BTreeMap::new(),
            queue_request: 0,
            unanswered: 0,
            unrequested: 0,
            most_needed: 0,
            withdrawn: BTreeSet::new(),
            next_request_id: 1,
            window_place: None,
            ask_at: None,
            fetch_at: None,
            look_at: None,
            recall_at: None,
            last_error: None,
            failing_since: None,
            retry_at: None,
            unavailable: false,
            misconfigured: false,
            fallback_at: None,
            edition: 0,
            change: None,
            changes: (0, 0),
            has_changed_limit: false,
            closed: false,
            stopped: false,
            process: std::process::id(),
            is_fork: false,
            known_until: now,
            usage: None,
            differs: false,
            counters: Counters::default(),
            watchers: BTreeMap::new(),
            next_watcher: 0,
            driver_woken: true,
            driver: None,
            wakers: Vec::new(),
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// True once after the limit has changed.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed_limit)
    }

    /// Takes the sessions that ended since the last call: their notifications are not awaited any more.
    pub(super) fn take_ended_sessions(&mut self) -> Vec<Session> {
        std::mem::take(&mut self.ended_sessions)
    }

    /// Tells the driver that it has work.
    fn wake_driver(&mut self) {
        self.driver_woken = true;
        self.wakers.extend(self.driver.take());
    }

    /// True if the driver was woken since it last asked; otherwise `waker` is registered. Also returns a waker to be dropped.
    pub(super) fn poll_driver(&mut self, waker: Waker) -> (bool, Option<Waker>) {
        if std::mem::take(&mut self.driver_woken) {
            return (true, Some(waker));
        }
        (false, self.driver.replace(waker))
    }

    /// Wakes the watchers, which wait for something other than units.
    fn wake_watchers(&mut self) {
        let watchers = std::mem::take(&mut self.watchers);
        self.wakers.extend(watchers.into_values());
    }

    /// Registers a watcher, under a number that it keeps from the first call on. Returns a waker to be dropped.
    pub(super) fn watch(&mut self, number: &mut Option<u64>, waker: Waker) -> Option<Waker> {
        let number = *number.get_or_insert_with(|| {
            self.next_watcher += 1;
            self.next_watcher
        });
        self.watchers.insert(number, waker)
    }

    pub(super) fn unwatch(&mut self, number: u64) -> Option<Waker> {
        self.watchers.remove(&number)
    }
}

/// The session at the store.
#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
struct LiveSession {
    id: Session,
    seq: u64,
    /// The sequence number of the last answered sync; zero before.
    acked: u64,
    /// When its units are lost, unless it is renewed before.
    deadline: Option<Instant>,
    renew_at: Instant,
    returned: u64,
    returned_acked: u64,
    charged: u64,
    charged_acked: u64,
    /// The token of the last grant.
    seen: u64,
}

/// A request at the store, or on its way there.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    need: u64,
    want: u64,
    queue: bool,
    /// How many times it was sent, and when for the first time.
    attempts: u32,
    asked: Instant,
    /// The only waiter that its grant is for.
    owner: Option<u64>,
}

/// A waiter of this process.
#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
struct Waiter {
    need: u64,
    kind: WaitKind,
    waker: Option<Waker>,
    request: Option<u64>,
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitKind {
    /// Its turn.
    Queued,
    /// Its turn, on behalf of a policy, which looks again when it is woken.
    Policy,
    /// The store's answer, whatever it is.
    Immediate,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Granted(RemoteTicket),
    Refused(Reason),
    /// It was granted, and lost again before the owner took it.
    Lapsed,
}

/// A wait that has ended, until its owner polls it.
#[derive(Clone, Copy, Debug)]
struct Ended {
    end: End,
    need: u64,
    kind: WaitKind,
}

/// Counts of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) syncs: u64,
    pub(super) failures: u64,
    pub(super) granted: u64,
    /// Requests for units that were sent to the store, and returns of units because others waited.
    pub(super) requests: u64,
    pub(super) recalls: u64,
    pub(super) losses: u64,
    pub(super) expired: u64,
    pub(super) uncounted: u64,
}

/// Read access: what is held, free, and known of the store.
impl Client {
    /// Whether the units held are still ours at `now`. The driver may notice a loss late.
    pub(super) fn is_valid(&self, now: Instant) -> bool {
        let deadline = self.live.as_ref().and_then(|live| live.deadline);
        deadline.is_some_and(|deadline| now < deadline)
    }

    /// Units that can be granted at once. Stale ones must be dropped before.
    pub(super) fn free(&self, now: Instant) -> u64 {
        if self.config.spends() {
            return self.tokens.available();
        }
        if let Some(capacity) = self.capacity.as_ref().filter(|_| self.is_valid(now)) {
            return capacity.share.tokens(self.micros(now));
        }
        if self.is_valid(now) { self.units.free() } else { 0 }
    }

    /// True when the limit forbids `n`, according to a recent reply of the store. An older one may be outdated, so the caller
    /// asks the store.
    pub(super) fn is_oversized(&self, n: u64, now: Instant) -> bool {
        if self.config.capacity {
            return n > self.limit();
        }
        let late = |at| self.clock.after(at, self.config.renewal) <= now;
        let known = self.usage.filter(|(_, at)| !late(*at));
        n > known.map_or(MAX_UNITS, |(usage, _)| usage.limit) && !self.unavailable
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_unavailable(&self) -> bool {
        self.unavailable
    }

    /// True while the store refuses for good.
    pub(super) fn is_misconfigured(&self) -> bool {
        self.misconfigured
    }

    /// Why requests are refused for the state of the store, while they are.
    pub(super) fn refuses(&self) -> Option<Reason> {
        if self.misconfigured {
            return Some(Reason::Misconfigured);
        }
        let rejects = self.unavailable && self.config.on_unavailable == OnUnavailable::Reject;
        rejects.then_some(Reason::Unavailable)
    }

    /// True when `n` would be admitted. For a caller behind others, `n` is above zero.
    pub(super) fn has_free(&mut self, n: u64, now: Instant) -> bool {
        n == 0
            || self.waiting() == 0
                && (n <= self.free(now) || self.unavailable && self.config.on_unavailable == OnUnavailable::Admit)
    }

    /// When `n` tokens will be available from those here and those granted for later, unless another caller takes them. `None`
    /// if they do not suffice, or if others wait.
    pub(super) fn arrives_at(&self, n: u64) -> Option<Instant> {
        self.tokens.arrives_at(n).filter(|_| self.waiting() == 0)
    }

    /// Whether the units of `ticket` may belong to another holder by now.
    pub(super) fn is_lost(&mut self, ticket: &RemoteTicket, now: Instant) -> bool {
        self.is_fork(now);
        self.counts(ticket) && (ticket.term != self.term || !self.is_valid(now))
    }

    /// When the units of `ticket` are lost, unless the lease is renewed.
    pub(super) fn expires_at(&self, ticket: &RemoteTicket) -> Option<Instant> {
        self.deadline().filter(|_| self.counts(ticket))
    }

    pub(super) fn has_fence(&self, ticket: &RemoteTicket) -> bool {
        !self.config.admits_tokens() && ticket.term != UNCOUNTED && ticket.term != SHARED
    }

    fn counts(&self, ticket: &RemoteTicket) -> bool {
        self.has_fence(ticket) && ticket.units > 0
    }

    /// The rule as it was set up, or as the store reports it after a change.
    pub(super) fn rule(&self) -> Rule {
        match (self.config.rule, self.usage) {
            (Rule::Permits { .. }, Some((Usage { limit, .. }, _))) => Rule::Permits { limit },
            (rule, _) => rule,
        }
    }

    /// Whether the store or another process uses another rule than this process was set up with.
    pub(super) fn differs(&self) -> bool {
        self.differs || self.rule() != self.config.set_up
    }

    /// The limit, as far as it is known here.
    pub(super) fn limit(&self) -> u64 {
        let set = match self.config.rule {
            Rule::Permits { limit } | Rule::Window { limit, .. } => limit,
            Rule::Rate { quota } => quota.burst_size(),
        };
        let known = self.usage.filter(|_| !self.config.capacity);
        known.map_or(set, |(usage, _)| usage.limit)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.live.as_ref().and_then(|live| live.deadline)
    }

    pub(super) fn usage(&self) -> Option<(Usage, Instant)> {
        self.usage
    }

    pub(super) fn waiting(&self) -> u64 {
        (self.queue.len() + self.direct.len()) as u64
    }

    /// A part of the leased units as a part of the burst; other units as they are.
    pub(super) fn in_units(&self, units: u64) -> u64 {
        if !self.config.capacity {
            return units;
        }
        let part = u128::from(self.limit()) * u128::from(units) / u128::from(UNITS);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    pub(super) fn held(&self) -> u64 {
        self.units.held
    }

    pub(super) fn in_use(&self) -> u64 {
        self.units.in_use
    }

    /// The fencing token of a permit.
    pub(super) fn fence(&self, ticket: &RemoteTicket) -> Option<Fence> {
        let RemoteTicket { token, order, .. } = *ticket;
        let floor = self.floor;
        self.has_fence(ticket).then_some(Fence { token, order, floor })
    }

    /// Why the last sync failed, if it did.
    pub(super) fn last_error(&self) -> Option<&StoreError> {
        self.last_error.as_ref()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }
}

/// Acquiring and refunding units without a round trip.
impl Client {
    /// Takes `n` units at once, or returns the reason for a refusal.
    pub(super) fn acquire(&mut self, n: u64, now: Instant) -> Result<RemoteTicket, Reason> {
        if self.is_fork(now) || self.closed {
            return Err(Reason::Closed);
        }
        self.drop_stale(now);
        if n == 0 || self.queue.is_empty() && n <= self.free(now) {
            let ticket = self.acquire_free(n, now);
            if self.requests.is_empty() && self.free(now) < self.low_water() {
                self.wake_driver();
            }
            return Ok(ticket);
        }
        if self.misconfigured {
            return Err(Reason::Misconfigured);
        }
        if self.is_oversized(n, now) {
            return Err(Reason::Oversized);
        }
        if self.unavailable && self.waiting() == 0 {
            return self.acquire_unavailable(n, now);
        }
        self.note_unmet(n, now);
        let is_refused = |at: Option<Instant>| at.is_some_and(|at| at > now);
        let known = self.waiting() > 0
            || self.config.capacity && self.units.held > 0
            || self.tokens.are_upcoming()
            || is_refused(self.ask_at)
            || is_refused(self.fetch_at);
        Err(if known { self.lacks_units() } else { Reason::RoundTrip })
    }

    /// The refusal while too few units are there.
    fn lacks_units(&self) -> Reason {
        if self.config.admits_tokens() {
            Reason::RateExceeded
        } else {
            Reason::Saturated
        }
    }

    /// Takes `n` of the free units.
    fn acquire_free(&mut self, n: u64, now: Instant) -> RemoteTicket {
        self.counters.granted += 1;
        if let Some(ticket) = self.take_leased(n, now) {
            return ticket;
        }
        let (token, order) = if self.config.spends() {
            // Refunded tokens live no longer than they would have.
            let (since, until) = self.tokens.take(n, now, &self.config);
            (since, until.ticks())
        } else {
            self.units.take(n)
        };
        RemoteTicket {
            units: n,
            term: self.term,
            token,
            order,
        }
    }

    /// Admits or refuses `n` while the store is unavailable.
    fn acquire_unavailable(&mut self, n: u64, now: Instant) -> Result<RemoteTicket, Reason> {
        let term = match self.config.on_unavailable {
            OnUnavailable::Reject => return Err(Reason::Unavailable),
            OnUnavailable::Admit => UNCOUNTED,
            OnUnavailable::Share { of } => {
                let (limit, micros) = (self.limit(), self.micros(now));
                let fits = if self.config.admits_tokens() {
                    self.fallback.take_tokens(n, of, micros)
                } else {
                    self.fallback.take_permits(n, of, limit)
                };
                if !fits {
                    return Err(self.lacks_units());
                }
                SHARED
            }
        };
        self.counters.uncounted += 1;
        Ok(RemoteTicket {
            units: n,
            term,
            token: 0,
            order: 0,
        })
    }

    /// Takes a ticket back: its work has ended, or does not start.
    pub(super) fn refund(&mut self, ticket: RemoteTicket, cancelled: bool, now: Instant) {
        if ticket.term == SHARED && !self.config.admits_tokens() {
            self.fallback.put_back(ticket.units);
            self.serve_queue(now);
            return;
        }
        if self.config.capacity {
            if cancelled && ticket.term != UNCOUNTED && ticket.term != SHARED {
                self.refund_leased(ticket.units, ticket.units, &ticket, now);
            }
            return;
        }
        if ticket.term != self.term || ticket.units == 0 {
            return;
        }
        if self.config.spends() {
            if cancelled {
                self.refund_tokens(ticket.units, &ticket, now);
            }
            return;
        }
        self.units.put_back(ticket.units, ticket.token);
        if self.config.prefetch.is_none() {
            self.return_units(ticket.units);
            return;
        }
        self.serve_queue(now);
        if self.recall_at.is_some() {
            self.wake_driver();
        }
    }

    /// Gives back `units` of a ticket, as far as they are still missing.
    fn refund_tokens(&mut self, units: u64, ticket: &RemoteTicket, now: Instant) {
        self.drop_stale(now);
        if self.tokens.refund(units, ticket, now, &self.config) {
            self.serve_queue(now);
        }
    }

    /// Corrects a charge of tokens, up to the most that can be requested.
    pub(super) fn settle(&mut self, ticket: &mut RemoteTicket, actual: u64, now: Instant) {
        let actual = actual.min(MAX_UNITS);
        let charged = std::mem::replace(&mut ticket.units, actual);
        if ticket.term == UNCOUNTED || ticket.term == SHARED {
            return;
        }
        let micros = self.micros(now);
        if let Some(capacity) = &mut self.capacity {
            if actual < charged {
                return self.refund_leased(charged - actual, charged, ticket, now);
            }
            return capacity.share.owe(actual - charged, micros);
        }
        if actual < charged {
            return self.refund_tokens(charged - actual, ticket, now);
        }
        let more = actual - charged;
        self.drop_stale(now);
        let lacks = self.tokens.charge(more, now, &self.config);
        if lacks > 0 {
            self.debt = self.debt.saturating_add(lacks);
            self.wake_driver();
        }
    }

    /// Returns `n` units that are not in use to the store.
    fn return_units(&mut self, n: u64) {
        if let Some(live) = self.live.as_mut().filter(|_| n > 0) {
            live.returned += n;
            self.units.give(n);
            self.wake_driver();
        }
    }

    fn micros(&self, now: Instant) -> u64 {
        let since = self.clock.between(Instant::ZERO, now);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The waiters of this process.
///
/// Without prefetching each waiter has a request of its own at the store, and gets what is granted to it: the store's queue is
/// the queue. With prefetching, and for rates, the waiters queue here and are served from what comes to this process.
impl Client {
    /// Adds a waiter for `need` units. The wait may end at once.
    pub(super) fn join(&mut self, need: u64, kind: WaitKind, waker: Waker, now: Instant) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        if let Some(end) = self.immediate_end(need, now) {
            self.ended.insert(key, Ended { end, need, kind });
            self.wakers.push(waker);
            return key;
        }
        if (self.unavailable || self.config.capacity) && kind == WaitKind::Immediate {
            let end = End::Refused(self.lacks_units());
            self.ended.insert(key, Ended { end, need, kind });
            self.wakers.push(waker);
            return key;
        }
        self.enqueue(key, need, kind, Some(waker));
        if self.unavailable {
            self.serve_fallback(now);
        }
        self.wake_driver();
        key
    }

    /// Adds a waiter to the queue or to the direct waiters.
    fn enqueue(&mut self, key: u64, need: u64, kind: WaitKind, waker: Option<Waker>) {
        let waiter = Waiter {
            need,
            kind,
            waker,
            request: None,
        };
        self.most_needed = self.most_needed.max(need);
        self.unrequested = self.unrequested.min(key);
        let places = if self.is_queued(kind) {
            &mut self.queue
        } else {
            &mut self.direct
        };
        places.insert(key, waiter);
    }

    /// Whether waiters of this kind queue in this process rather than at the store.
    fn is_queued(&self, kind: WaitKind) -> bool {
        kind != WaitKind::Immediate && (self.config.prefetch.is_some() || self.config.admits_tokens())
    }

    fn immediate_end(&mut self, need: u64, now: Instant) -> Option<End> {
        match self.acquire(need, now) {
            Ok(ticket) => Some(End::Granted(ticket)),
            Err(Reason::Saturated | Reason::RateExceeded | Reason::RoundTrip) => None,
            // The limit may have been raised.
            Err(Reason::Oversized) if !self.config.capacity => None,
            Err(reason) => Some(End::Refused(reason)),
        }
    }

    /// The result of the wait `key`, if it has ended. Otherwise registers `waker`, and returns the one before, to be dropped.
    /// An unknown wait has ended with nothing.
    pub(super) fn poll_wait(&mut self, key: u64, waker: Option<Waker>, now: Instant) -> (Option<End>, Option<Waker>) {
        if let Some(End::Granted(ticket)) = self.ended.get(&key).map(|ended| ended.end) {
            // A permit that was lost before its owner took it is waited for once more, in the same place.
            let counts = !self.config.admits_tokens() && ticket.term == self.term && ticket.units > 0;
            if counts && !self.is_valid(now) {
                self.on_lease_end(now);
            }
        }
        if let Some(ended) = self.ended.remove(&key) {
            return (Some(ended.end), waker);
        }
        let waiter = match self.queue.get_mut(&key) {
            Some(waiter) => waiter,
            None => match self.direct.get_mut(&key) {
                Some(waiter) => waiter,
                None => return (Some(End::Refused(Reason::Closed)), waker),
            },
        };
        match waker {
            Some(waker) => (None, waiter.waker.replace(waker)),
            None => (None, None),
        }
    }

    /// The owner of `key` leaves. Its grant, if any, goes to the next waiter. Returns a waker, to be dropped.
    pub(super) fn leave(&mut self, key: u64, now: Instant) -> Option<Waker> {
        if let Some(ended) = self.ended.remove(&key) {
            if let End::Granted(ticket) = ended.end {
                self.refund(ticket, true, now);
            }
            return None;
        }
        if let Some(waiter) = self.direct.remove(&key) {
            if let Some(request) = waiter.request {
                self.withdraw(request);
            }
            return waiter.waker;
        }
        let waiter = self.queue.remove(&key)?;
        self.ask_at = None;
        self.serve_queue(now);
        self.wake_driver();
        waiter.waker
    }

    /// Ends the wait `key`, whose waiter was already removed.
    fn end(&mut self, key: u64, mut waiter: Waiter, end: End) {
        if waiter.kind == WaitKind::Policy && matches!(end, End::Granted(_)) {
            self.hand_to_oldest(key, waiter.need, &mut waiter.waker);
        }
        let (need, kind) = (waiter.need, waiter.kind);
        self.ended.insert(key, Ended { end, need, kind });
        self.wakers.extend(waiter.waker);
    }

    /// Serves the queue from the free units.
    fn serve_queue(&mut self, now: Instant) {
        if self.unavailable {
            self.serve_fallback(now);
        }
        // While other sessions wait, units that become free stay here for a turn only.
        if self.recall_at.is_some_and(|until| now >= until) {
            return;
        }
        let waiters = self.queue.len();
        while let Some((&key, head)) = self.queue.first_key_value() {
            if head.need > self.free(now) {
                break;
            }
            let Some(waiter) = self.queue.remove(&key) else { return };
            let ticket = self.acquire_free(waiter.need, now);
            self.end(key, waiter, End::Granted(ticket));
        }
        if self.queue.len() < waiters {
            self.round = self
                .are_scarce
                .then(|| (waiters, self.clock.after(now, self.round_length())));
            let has_place = |pending: &PendingRequest| pending.queue;
            if self.queue.is_empty() && self.requests.get(&self.queue_request).is_some_and(has_place) {
                // The place is withdrawn: others would wait behind it, and the store would not say so.
                self.wake_driver();
            }
        }
    }

    /// How long a request waits for others: less than a bucket takes to fill, so that no refill is lost.
    fn round_length(&self) -> Duration {
        let Rule::Rate { quota } = self.config.rule else {
            return ROUND;
        };
        let half = quota.period().as_nanos() * u128::from(quota.burst_size()) / 2 / u128::from(quota.count().max(1));
        ROUND.min(Duration::from_nanos(half.try_into().unwrap_or(u64::MAX)))
    }

    /// Sets the instant at which this process's own share has `need` units for the first waiter.
    fn await_share(&mut self, need: u64, now: Instant) {
        if let OnUnavailable::Share { of } = self.config.on_unavailable {
            if self.config.admits_tokens() {
                let wait = self.fallback.wait(need, of);
                self.fallback_at = wait.map(|wait| self.clock.after(now, wait));
            }
        }
    }

    /// Serves all waiters in order of arrival from this process's own share.
    fn serve_fallback(&mut self, now: Instant) {
        while let Some(key) = self.first() {
            let waiter = self.queue.get(&key).or_else(|| self.direct.get(&key));
            let Some(need) = waiter.map(|waiter| waiter.need) else {
                return;
            };
            let end = match self.acquire_unavailable(need, now) {
                Ok(ticket) => End::Granted(ticket),
                Err(reason @ (Reason::Unavailable | Reason::Closed)) => End::Refused(reason),
                Err(_) => return self.await_share(need, now),
            };
            self.end_wait(key, end);
        }
    }

    /// The key of the oldest waiter.
    fn first(&self) -> Option<u64> {
        let queue = self.queue.keys().next();
        let direct = self.direct.keys().next();
        queue.into_iter().chain(direct).min().copied()
    }

    /// Ends the wait of `key`, and withdraws its request.
    fn end_wait(&mut self, key: u64, end: End) {
        if let Some(waiter) = self.queue.remove(&key) {
            self.end(key, waiter, end);
        } else if let Some(waiter) = self.direct.remove(&key) {
            if let Some(request) = waiter.request {
                self.withdraw(request);
            }
            self.end(key, waiter, end);
        }
    }

    /// Ends all waits with `end`.
    fn end_all_waits(&mut self, end: End) {
        while let Some(key) = self.first() {
            self.end_wait(key, end);
        }
    }

    /// Returns waiters that were granted permits of this term and have not taken them to their places: they wait again.
    fn requeue_granted(&mut self) {
        if self.config.capacity {
            return;
        }
        let term = self.term;
        let of_term = |end: &End| matches!(end, End::Granted(RemoteTicket { units: 1.., term: of, .. }) if *of == term);
        let lost = self.ended.iter().filter(|(_, ended)| of_term(&ended.end));
        let lost: Vec<_> = lost.map(|(&key, _)| key).collect();
        for key in lost {
            let Some(Ended { need, kind, .. }) = self.ended.remove(&key) else {
                continue;
            };
            if self.closed {
                let end = End::Refused(Reason::Closed);
                self.ended.insert(key, Ended { end, need, kind });
                continue;
            }
            if kind == WaitKind::Policy {
                let end = End::Lapsed;
                self.ended.insert(key, Ended { end, need, kind });
                continue;
            }
            // Its owner has been woken, and registers a waker when it polls.
            self.enqueue(key, need, kind, None);
        }
    }
}

/// The passing of time: leases end, the store stays away, units lie idle.
impl Client {
    /// Advances the time to `now`.
    pub(super) fn on_tick(&mut self, now: Instant) {
        let deadline = self.deadline().filter(|_| !self.config.spends());
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.on_lease_end(now);
        }
        let patience = self.config.unavailable_after;
        let failing_since = self.failing_since.filter(|_| !self.unavailable);
        if failing_since.is_some_and(|since| self.clock.after(since, patience) <= now) {
            self.declare_unavailable(now);
        }
        if self.unavailable && self.fallback_at.is_some_and(|at| at <= now) {
            self.fallback_at = None;
            self.serve_fallback(now);
        }
        self.drop_stale(now);
        self.return_idle(now);
        self.serve_queue(now);
    }

    /// Ends the session here, with the loss of its units. The store is told, in case it thinks otherwise.
    fn on_lease_end(&mut self, now: Instant) {
        let Some(live) = self.live.take() else { return };
        self.end_session(&live);
        self.forget_session(now);
    }

    /// Forgets the state of the session. Waiters whose granted permits were not taken wait again.
    fn forget_session(&mut self, now: Instant) {
        self.requests.clear();
        self.withdrawn.clear();
        self.look_at = None;
        self.recall_at = None;
        self.unrequested = 0;
        for waiter in self.direct.values_mut() {
            waiter.request = None;
        }
        if self.config.spends() {
            return;
        }
        self.requeue_granted();
        self.term += 1;
        self.counters.losses += u64::from(self.units.lapse());
        let micros = self.micros(now);
        if let Some(capacity) = &mut self.capacity {
            capacity.share.lapse(micros);
        }
        self.wake_watchers();
        if self.unavailable {
            self.serve_fallback(now);
        }
        self.wake_driver();
    }

    /// Schedules the report of the session's end to the store.
    fn end_session(&mut self, live: &LiveSession) {
        const MOST: usize = 8;
        if self.session_ends.len() == MOST {
            let unheard = self.session_ends.pop_front();
            self.ended_sessions.extend(unheard.map(|(session, ..)| session));
        }
        self.session_ends.push_back((live.id, live.seq + 1, 0));
    }

    /// Declares the store unavailable: it has not answered for too long.
    fn declare_unavailable(&mut self, now: Instant) {
        (self.unavailable, self.misconfigured) = (true, false);
        match self.config.on_unavailable {
            OnUnavailable::Reject => self.end_all_waits(End::Refused(Reason::Unavailable)),
            OnUnavailable::Admit | OnUnavailable::Share { .. } => self.serve_fallback(now),
        }
        self.wake_watchers();
    }

    /// Makes tokens available whose time has come, and drops those that were not spent in time.
    pub(super) fn drop_stale(&mut self, now: Instant) {
        let first_need = || self.queue.first_key_value().map_or(0, |(_, head)| head.need);
        self.counters.expired += self.tokens.advance(first_need, now, &self.config);
    }

    /// Returns permits to the store that were idle for some time.
    fn return_idle(&mut self, now: Instant) {
        if let Some(prefetch) = self.config.prefetch.filter(|_| !self.config.spends()) {
            let idle = self.units.idle(&prefetch, now, &self.clock);
            self.return_units(idle);
        }
    }

    /// The next instant at which [`on_tick`](Self::on_tick) or the store has something to do.
    pub(super) fn next_tick(&self, now: Instant) -> Option<Instant> {
        let deadline = self.deadline().filter(|_| !self.config.spends());
        let away = self.failing_since.filter(|_| !self.unavailable);
        let away = away.map(|since| self.clock.after(since, self.config.unavailable_after));
        let idle = self.units.idle_at;
        let share = self.fallback_at.filter(|_| self.unavailable);
        let recall_at = self.recall_at.filter(|&until| until > now && !self.queue.is_empty());
        // Tokens kept available are replaced when they are dropped.
        let kept = self.config.prefetch.is_some_and(|prefetch| prefetch.low > 0);
        let (upcoming, stale) = self.tokens.next();
        let stale = stale.filter(|_| kept);
        [
            deadline,
            away,
            idle,
            share,
            recall_at,
            stale,
            upcoming,
            self.served_at(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

/// How long a request waits for those that were served at the last: a wake-up of each of them, and not much of a turn.
const ROUND: Duration = Duration::from_millis(1);

/// A check is a system call, so its answer holds this long.
const LOOK: Duration = Duration::from_millis(1);

/// A copy of the client in a forked process.
///
/// The child has the session and the connections of its parent in memory: a permit that it took would exist twice, under one
/// token. So a copy admits nothing, and sends nothing to the store.
impl Client {
    /// Whether this is the copy in a forked process, checked anew after [`LOOK`].
    #[inline]
    fn is_fork(&mut self, now: Instant) -> bool {
        if now >= self.known_until {
            self.check_process(now);
        }
        self.is_fork
    }

    /// Checks whether this is the copy in a forked process. A copy loses its units and closes, without a sync.
    pub(super) fn check_process(&mut self, now: Instant) {
        self.known_until = self.clock.after(now, LOOK);
        if self.is_fork || std::process::id() == self.process {
            return;
        }
        (self.is_fork, self.closed) = (true, true);
        self.live = None;
        self.session_ends.clear();
        self.forget_session(now);
        self.end_all_waits(End::Refused(Reason::Closed));
    }
}

#[cfg(all(test, not(tollgate_proofs)))]
mod tests {
    use crate::ManualClock;
    use crate::core::refusal::Reason;
    use crate::remote::{Key, Memory, Prefetch, Remote};
    use std::sync::Arc;

    #[test]
    fn a_limiter_in_a_forked_process_is_closed_and_sends_nothing() {
        let clock = ManualClock::new();
        let store = Arc::new(Memory::new(&clock));
        let build = |prefetch| {
            let remote = Remote::permits(Key::new("shared").unwrap(), 8)
                .on(&clock)
                .prefetch(prefetch);
            remote.in_place(Arc::clone(&store)).unwrap()
        };
        let (copy, other) = (
            build(Prefetch {
                low: 4,
                ..Prefetch::up_to(4)
            }),
            build(Prefetch::up_to(4)),
        );
        let held = clock.run(copy.acquire(1)).unwrap();
        clock.advance(super::LOOK);
        // As in a child, whose process id differs.
        copy.shared.with(|client| client.process ^= 1);
        let syncs = copy.stats().syncs;
        assert_eq!(
            copy.try_acquire(1).unwrap_err().reason(),
            Reason::Closed,
            "three are at hand"
        );
        assert!(held.is_lost());
        drop(held);
        assert_eq!(clock.run(copy.acquire(1)).unwrap_err().reason(), Reason::Closed);
        clock.run(copy.close());
        assert_eq!(copy.stats().syncs, syncs);
        // The parent still holds its units.
        assert!(clock.run(other.acquire_now(5)).is_err());
        drop(clock.run(other.acquire_now(4)).unwrap());
    }
}
