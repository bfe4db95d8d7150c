//! What one process knows and holds of a key, as a pure state machine: no I/O, no clock, no waking. Callers lock it, pass it the
//! instant, and wake the wakers that it collected once it is unlocked.
//!
//! This file has the state and its local side: acquiring and refunding, the waiters, the passing of time. [`sync`] is the exchange
//! with the store, and [`low_watermarks`] bounds the tokens that may come back.

mod low_watermarks;
mod sync;

use super::backend::{Rule, Session, StoreError, SyncReply, Usage};
use super::config::{Config, MAX_UNITS, OnUnavailable};
use super::fence::Fence;
use super::model::Meter;
use crate::rate::Quota;
use crate::refusal::Reason;
use crate::ticket::Ticket;
use crate::time::{Clock, Instant};
use low_watermarks::LowWatermarks;
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};
use std::task::Waker;
use std::time::Duration;
pub(super) use sync::Action;
use sync::Change;

#[derive(Debug)]
pub(super) struct Client {
    config: Config,
    clock: Clock,
    live: Option<LiveSession>,
    /// The number of the session, or of the one to come.
    term: u64,
    sessions: u64,
    /// Sessions that have ended here, and of which the store has to be told: with a number for the step, and how often that
    /// was tried.
    session_ends: VecDeque<(Session, u64, u32)>,
    /// Sessions that have ended, and of which the store knows it, or is not told: nobody asks for news of them.
    ended_sessions: Vec<Session>,

    /// Permits: how many the session holds, and how many of them are in use.
    held: u64,
    in_use: u64,
    /// Tokens at hand, with the instants at which they are dropped.
    credit: VecDeque<(Instant, u64)>,
    credit_total: u64,
    /// Tokens that may be used from an instant on.
    upcoming: VecDeque<(Instant, u64)>,
    /// How many the store's bucket was short of, at least, and since when it fills again.
    shortfall: (u64, Instant),
    /// How many were missing, here and there, since each was taken.
    low_watermarks: LowWatermarks,
    /// Tokens that were used and not taken yet, as far as the store does not know.
    debt: u64,
    token: u64,
    order: u64,
    /// How many units are in use, by the tokens of their permits: none of them zero, but that of the last grant; and below which token nobody holds any.
    in_use_by_token: BTreeMap<u64, u64>,
    floor: u64,

    /// Those who wait for what comes to this process, in order.
    queue: BTreeMap<u64, Waiter>,
    /// Those for each of whom the store is asked by name.
    direct: BTreeMap<u64, Waiter>,
    ended: BTreeMap<u64, Ended>,
    next_key: u64,

    requests: BTreeMap<u64, PendingRequest>,
    withdrawn: BTreeSet<u64>,
    next_request_id: u64,
    /// The wish for which we have a place in the line of a window at the store.
    window_place: Option<u64>,
    /// A rate has nothing to give before this.
    ask_at: Option<Instant>,
    /// Nothing is fetched ahead before this.
    fetch_at: Option<Instant>,
    /// When the store is to be looked at again.
    look_at: Option<Instant>,

    /// Others wait, and what comes free here goes to them from this instant on.
    recall_at: Option<Instant>,
    /// The least that was free since the last look, and when the next is.
    least_free: u64,
    idle_at: Option<Instant>,
    /// How many tokens the demand takes in a span, when last measured.
    batch: u64,
    /// How many were spent since a block was last taken, and when that was.
    spent: u64,
    fetched_at: Instant,

    last_error: Option<StoreError>,
    failing_since: Option<Instant>,
    retry_at: Option<Instant>,
    /// The store has been declared away.
    unavailable: bool,
    share: Meter,
    share_in_use: u64,
    share_at: Option<Instant>,

    /// Which edition of the rule we go by, and what it is to be changed to, with the number of the change.
    edition: u64,
    change: Option<Change>,
    /// The number of the last change that was asked for, and of the last that the store has carried out.
    changes: (u64, u64),
    closed: bool,
    stopped: bool,
    /// The process that made it; whether this is a copy in another one, and until when that is taken for known.
    process: u32,
    is_fork: bool,
    known_until: Instant,

    usage: Option<(Usage, Instant)>,
    /// Another session goes by another rule.
    differs: bool,
    pub(super) counters: Counters,

    watchers: BTreeMap<u64, Waker>,
    next_watcher: u64,
    /// The driver has something to do, or waits to be told that it has.
    driver_woken: bool,
    driver: Option<Waker>,
    /// Whom to wake once the lock is free.
    wakers: Vec<Waker>,
}

impl Client {
    pub(super) fn new(config: Config, clock: &Clock) -> Self {
        let now = clock.now();
        Self {
            share: Meter::new(&config.rule, 0),
            config,
            clock: clock.clone(),
            live: None,
            term: 1,
            sessions: 0,
            session_ends: VecDeque::new(),
            ended_sessions: Vec::new(),
            held: 0,
            in_use: 0,
            credit: VecDeque::new(),
            credit_total: 0,
            upcoming: VecDeque::new(),
            shortfall: (0, now),
            low_watermarks: LowWatermarks::new(),
            batch: 0,
            debt: 0,
            token: 0,
            order: 0,
            in_use_by_token: BTreeMap::new(),
            floor: 0,
            queue: BTreeMap::new(),
            direct: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_key: 1,
            requests: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            next_request_id: 1,
            window_place: None,
            ask_at: None,
            fetch_at: None,
            look_at: None,
            recall_at: None,
            least_free: 0,
            idle_at: None,
            spent: 0,
            fetched_at: now,
            last_error: None,
            failing_since: None,
            retry_at: None,
            unavailable: false,
            share_in_use: 0,
            share_at: None,
            edition: 0,
            change: None,
            changes: (0, 0),
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

    /// Of which sessions nobody asks for news any more, since this was last asked.
    pub(super) fn take_ended_sessions(&mut self) -> Vec<Session> {
        std::mem::take(&mut self.ended_sessions)
    }

    /// The driver has something to do.
    fn wake_driver(&mut self) {
        self.driver_woken = true;
        self.wakers.extend(self.driver.take());
    }

    /// True when the driver was poked since it last asked; otherwise `waker` will be woken. Also returns a waker to be dropped.
    pub(super) fn poll_driver(&mut self, waker: Waker) -> (bool, Option<Waker>) {
        if std::mem::take(&mut self.driver_woken) {
            return (true, Some(waker));
        }
        (false, self.driver.replace(waker))
    }

    /// Wakes whoever watches for something other than units.
    fn wake_watchers(&mut self) {
        let watchers = std::mem::take(&mut self.watchers);
        self.wakers.extend(watchers.into_values());
    }

    /// Watches, under a number of its own from the first time on. Returns a waker to be dropped.
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
struct LiveSession {
    id: Session,
    seq: u64,
    /// The last step that was answered; zero before.
    acked: u64,
    /// When what it holds is lost, unless it is renewed before.
    deadline: Option<Instant>,
    renew_at: Instant,
    returned: u64,
    returned_acked: u64,
    charged: u64,
    charged_acked: u64,
    /// The token of the last grant.
    seen: u64,
}

/// A wish that is with the store, or on its way.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    need: u64,
    want: u64,
    queue: bool,
    /// The store has answered it.
    answered: bool,
    /// How often it has been said.
    attempts: u32,
    /// Who alone is to get what it gives.
    owner: Option<u64>,
}

/// Somebody who waits.
#[derive(Debug)]
struct Waiter {
    need: u64,
    kind: WaitKind,
    waker: Option<Waker>,
    request: Option<u64>,
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitKind {
    /// For its turn.
    Queued,
    /// The same, on behalf of a policy: its waker is called once.
    Policy,
    /// For the store's answer, whatever it is.
    Immediate,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Granted(RemoteTicket),
    Refused(Reason),
    /// It was granted, and lost again before anybody took it.
    Lapsed,
}

/// A wait that has ended, until its owner looks.
#[derive(Clone, Copy, Debug)]
struct Ended {
    end: End,
    need: u64,
    kind: WaitKind,
}

/// How often things have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) syncs: u64,
    pub(super) failures: u64,
    pub(super) granted: u64,
    pub(super) losses: u64,
    pub(super) expired: u64,
    pub(super) uncounted: u64,
}

/// What one admission holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteTicket {
    pub(super) units: u64,
    /// Under which session, by number; or [`UNCOUNTED`], or [`SHARED`].
    pub(super) term: u64,
    /// Of a permit: the token of the last grant, and the how-manieth admission since it was. Of tokens: the moment from which on
    /// they are missing, and until when they would have been kept.
    pub(super) token: u64,
    pub(super) order: u64,
}

/// The term of an admission that nobody counts.
pub(super) const UNCOUNTED: u64 = 0;
/// The term of an admission out of this process's own share.
pub(super) const SHARED: u64 = u64::MAX;

impl Ticket for RemoteTicket {
    const WORDS: usize = 4;
    fn write(&self, words: &mut [u64]) {
        words[..4].copy_from_slice(&[self.units, self.term, self.token, self.order]);
    }
    fn read(words: &[u64]) -> Self {
        Self {
            units: words[0],
            term: words[1],
            token: words[2],
            order: words[3],
        }
    }
}

/// The view of others: what is held, free and known of the store.
impl Client {
    /// Whether what is held is still ours at `now`. The driver may be late to notice that it is not.
    pub(super) fn is_valid(&self, now: Instant) -> bool {
        let deadline = self.live.as_ref().and_then(|live| live.deadline);
        deadline.is_some_and(|deadline| now < deadline)
    }

    /// Units that could be given on the spot, once what is stale has been dropped.
    pub(super) fn free(&self, now: Instant) -> u64 {
        if self.config.spends() {
            return self.credit_total;
        }
        if self.is_valid(now) { self.held - self.in_use } else { 0 }
    }

    /// True when the limit forbids `n` for good, or until it is raised, as the store has said of late. What it said before may
    /// have changed since: who asks is told.
    pub(super) fn is_oversized(&self, n: u64, now: Instant) -> bool {
        let late = |at| self.clock.after(at, self.config.renewal) <= now && !seeded!("remote_believes_for_ever");
        let known = self.usage.filter(|(_, at)| !late(*at));
        n > known.map_or(MAX_UNITS, |(usage, _)| usage.limit) && !self.unavailable
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_unavailable(&self) -> bool {
        self.unavailable
    }

    /// True while the store is away and nobody is admitted for that.
    pub(super) fn refuses_unavailable(&self) -> bool {
        self.unavailable && self.config.on_unavailable == OnUnavailable::Reject
    }

    /// True when `n` would be admitted, `n` being more than zero for whoever does not come first.
    pub(super) fn has_free(&mut self, n: u64, now: Instant) -> bool {
        n == 0
            || self.waiting() == 0
                && (n <= self.free(now) || self.unavailable && self.config.on_unavailable == OnUnavailable::Admit)
    }

    /// When `n` tokens will be at hand out of those that are and those that are granted for later, unless somebody else takes
    /// them; none when that is not enough, or others come first.
    pub(super) fn arrives_at(&self, n: u64) -> Option<Instant> {
        let mut arrived = 0;
        let mut upcoming = self.upcoming.iter().map(|&(from, units)| {
            arrived += units;
            let kept = self.credit.iter().filter(|&&(until, _)| until > from);
            (from, arrived + kept.map(|(_, units)| units).sum::<u64>())
        });
        let enough = upcoming.find(|&(_, there)| there >= n)?;
        Some(enough.0).filter(|_| self.waiting() == 0)
    }

    /// Whether what `ticket` was given belongs to somebody else by now.
    pub(super) fn is_lost(&mut self, ticket: &RemoteTicket, now: Instant) -> bool {
        self.is_fork(now);
        self.counts(ticket) && (ticket.term != self.term || !self.is_valid(now))
    }

    /// When what `ticket` was given is lost, unless it is renewed.
    pub(super) fn expires_at(&self, ticket: &RemoteTicket) -> Option<Instant> {
        self.deadline().filter(|_| self.counts(ticket))
    }

    pub(super) fn has_fence(&self, ticket: &RemoteTicket) -> bool {
        !self.config.spends() && ticket.term != UNCOUNTED && ticket.term != SHARED
    }

    fn counts(&self, ticket: &RemoteTicket) -> bool {
        self.has_fence(ticket) && ticket.units > 0
    }

    /// As it was set up, or as the store has it where somebody has changed it.
    pub(super) fn rule(&self) -> Rule {
        match (self.config.rule, self.usage) {
            (Rule::Permits { .. }, Some((Usage { limit, .. }, _))) => Rule::Permits { limit },
            (rule, _) => rule,
        }
    }

    /// Whether the store goes by another rule than this process was set up with, or another process does.
    pub(super) fn differs(&self) -> bool {
        self.differs || self.rule() != self.config.set_up
    }

    /// The limit, as far as it is known here.
    pub(super) fn limit(&self) -> u64 {
        let set = match self.config.rule {
            Rule::Permits { limit } | Rule::Window { limit, .. } => limit,
            Rule::Rate { quota } => quota.burst_size(),
        };
        self.usage.map_or(set, |(usage, _)| usage.limit)
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

    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn in_use(&self) -> u64 {
        self.in_use
    }

    /// The fencing token of a permit.
    pub(super) fn fence(&self, ticket: &RemoteTicket) -> Option<Fence> {
        let RemoteTicket { token, order, .. } = *ticket;
        let floor = self.floor;
        self.has_fence(ticket).then_some(Fence { token, order, floor })
    }

    /// The token of the oldest grant of which something is held here, or may be used again.
    fn oldest(&self) -> Option<u64> {
        let used = self.in_use_by_token.keys().next().copied();
        (self.held > 0).then(|| used.unwrap_or(self.token))
    }

    /// Why the last step failed, if it did.
    pub(super) fn last_error(&self) -> Option<&StoreError> {
        self.last_error.as_ref()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }
}

/// Acquiring and refunding units on the spot.
impl Client {
    /// Takes `n` now, or says why not.
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
        if self.is_oversized(n, now) {
            return Err(Reason::Oversized);
        }
        if self.unavailable && self.waiting() == 0 {
            return self.acquire_unavailable(n, now);
        }
        Err(if self.config.spends() {
            Reason::RateExceeded
        } else {
            Reason::Saturated
        })
    }

    /// Takes `n` of what is free.
    fn acquire_free(&mut self, n: u64, now: Instant) -> RemoteTicket {
        self.counters.granted += 1;
        if self.config.spends() {
            // What comes back of it lives no longer than it would have.
            let until = self.credit.front().map_or(Instant::ZERO, |(until, _)| *until);
            let missing = self.begin_missing(n, now);
            self.spend(n);
            return RemoteTicket {
                units: n,
                term: self.term,
                token: missing,
                order: until.ticks(),
            };
        }
        self.in_use += n;
        self.least_free = self.least_free.min(self.held - self.in_use);
        self.order += 1;
        if n > 0 {
            *self.in_use_by_token.entry(self.token).or_default() += n;
        }
        RemoteTicket {
            units: n,
            term: self.term,
            token: self.token,
            order: self.order - 1,
        }
    }

    fn spend(&mut self, n: u64) {
        self.spent += n;
        self.draw(n);
    }

    /// Takes so many tokens off those at hand, first those that are dropped first.
    fn draw(&mut self, mut n: u64) {
        while n > 0
            && let Some((_, units)) = self.credit.front_mut()
        {
            let part = n.min(*units);
            *units -= part;
            self.credit_total -= part;
            n -= part;
            if *units == 0 {
                self.credit.pop_front();
            }
        }
    }

    /// What is done for `n` while the store is away.
    fn acquire_unavailable(&mut self, n: u64, now: Instant) -> Result<RemoteTicket, Reason> {
        let (token, order) = (self.token, self.order);
        let ticket = |term| RemoteTicket {
            units: n,
            term,
            token,
            order,
        };
        match self.config.on_unavailable {
            OnUnavailable::Reject => Err(Reason::Unavailable),
            OnUnavailable::Admit => {
                self.counters.uncounted += 1;
                Ok(ticket(UNCOUNTED))
            }
            OnUnavailable::Share { of } => {
                let parts = n.saturating_mul(of.max(1));
                let fits = if self.config.spends() {
                    self.share.advance(self.micros(now));
                    self.share.fits(parts)
                } else {
                    self.share_in_use.saturating_add(n).saturating_mul(of.max(1)) <= self.limit()
                };
                if !fits {
                    let reason = if self.config.spends() {
                        Reason::RateExceeded
                    } else {
                        Reason::Saturated
                    };
                    return Err(reason);
                }
                if self.config.spends() {
                    self.share.take(parts);
                } else {
                    self.share_in_use += n;
                }
                self.counters.uncounted += 1;
                Ok(ticket(SHARED))
            }
        }
    }

    /// What was taken comes back: the work has ended, or does not start.
    pub(super) fn refund(&mut self, ticket: RemoteTicket, cancelled: bool, now: Instant) {
        if ticket.term == SHARED && !self.config.spends() {
            self.share_in_use -= ticket.units;
            self.serve_queue(now);
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
        self.in_use -= ticket.units;
        if let btree_map::Entry::Occupied(mut used) = self.in_use_by_token.entry(ticket.token) {
            *used.get_mut() -= ticket.units;
            // That of the last grant stays, since it is used again.
            if *used.get() == 0 && ticket.token != self.token {
                used.remove();
            }
        }
        if self.config.prefetch.is_none() {
            self.return_units(ticket.units);
            return;
        }
        self.serve_queue(now);
        if self.recall_at.is_some() {
            self.wake_driver();
        }
    }

    /// Tokens are at hand again, as far as they are still missing, up to a block, and as long as they would have been.
    fn refund_tokens(&mut self, units: u64, ticket: &RemoteTicket, now: Instant) {
        self.drop_stale(now);
        self.note_missing(now);
        let (missing, until) = self.still_missing(units, ticket, now);
        let missing = if seeded!("remote_mints_by_cancelling") {
            units
        } else {
            missing
        };
        self.spent = self.spent.saturating_sub(units);
        // A ticket that was settled says what is left of it.
        let own = ticket.units.max(units);
        let most = self.config.prefetch.map_or(own, |prefetch| prefetch.most.max(own));
        let units = missing.min(most.saturating_sub(self.credit_total));
        if until > now && units > 0 {
            self.low_watermarks.lower(ticket.token, units);
            self.add_credit(units, until);
            self.serve_queue(now);
        }
    }

    /// Tokens that are granted and may not be used yet.
    fn upcoming(&self) -> u64 {
        self.upcoming.iter().map(|(_, units)| units).sum()
    }

    /// Tokens are at hand until then.
    fn add_credit(&mut self, units: u64, until: Instant) {
        let at = self.credit.partition_point(|(other, _)| *other <= until);
        self.credit.insert(at, (until, units));
        self.credit_total += units;
    }

    /// Corrects a charge of tokens: to no more than can be asked for.
    pub(super) fn settle(&mut self, ticket: &mut RemoteTicket, actual: u64, now: Instant) {
        let actual = actual.min(MAX_UNITS);
        let charged = std::mem::replace(&mut ticket.units, actual);
        if ticket.term == UNCOUNTED || ticket.term == SHARED {
            return;
        }
        if actual < charged {
            return self.refund_tokens(charged - actual, ticket, now);
        }
        let more = actual - charged;
        self.drop_stale(now);
        let part = more.min(self.free(now));
        self.note_missing(now);
        self.spend(part);
        if more > part {
            self.debt = self.debt.saturating_add(more - part);
            self.wake_driver();
        }
    }

    /// Gives `n` units that are not in use back to the store.
    fn return_units(&mut self, n: u64) {
        if let Some(live) = &mut self.live
            && n > 0
        {
            live.returned += n;
            self.held -= n;
            self.least_free = self.least_free.min(self.held - self.in_use);
            self.wake_driver();
        }
    }

    fn micros(&self, now: Instant) -> u64 {
        let since = self.clock.between(Instant::ZERO, now);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// What is given up so soon after it came comes back whole where there are no blocks: the bound is exceeded by no more than comes
/// in this time.
const LATENESS: Duration = Duration::from_millis(10);

/// How many tokens come in this time, rounded up.
fn gained(quota: &Quota, passed: Duration) -> u64 {
    let parts = passed.as_nanos().saturating_mul(quota.count().into());
    u64::try_from(parts.div_ceil(quota.period().as_nanos())).unwrap_or(u64::MAX)
}

/// In what time so many come, rounded down.
fn spending(quota: &Quota, tokens: u64) -> Duration {
    let nanos = quota.period().as_nanos().saturating_mul(tokens.into()) / u128::from(quota.count());
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// How many of the reserved tokens may come back.
//BACKDOC
impl Client {
    /// How much is missing, at least, before anything changes at `now`.
    fn note_missing(&mut self, now: Instant) {
        if self.config.spends() {
            let missing = self.missing(0, now);
            self.low_watermarks.note(missing);
        }
    }

    /// The same, and `n` that are at hand are to be taken. Returns the moment from which on they are missing.
    fn begin_missing(&mut self, n: u64, now: Instant) -> u64 {
        let before = self.missing(0, now);
        self.low_watermarks.note(before);
        // As a rule the sum; less where more is at hand than can be missing.
        let after = if before > 0 { before + n } else { self.missing(n, now) };
        self.low_watermarks.begin(after)
    }

    /// The same once `n` more were taken.
    fn missing(&self, n: u64, now: Instant) -> u64 {
        let here = self.credit_total + self.upcoming();
        (self.most() + self.missing_there(now) + n).saturating_sub(here)
    }

    /// How much a process may have at hand.
    fn most(&self) -> u64 {
        self.config.prefetch.map_or(0, |prefetch| prefetch.most)
    }

    /// How many tokens the bucket of the store is short of, at least.
    fn missing_there(&self, now: Instant) -> u64 {
        let (tokens, since) = self.shortfall;
        match self.config.rule {
            Rule::Rate { quota } => {
                // Clocks run apart.
                let passed = self.clock.between(since, now).saturating_mul(101) / 100;
                tokens.saturating_sub(gained(&quota, passed))
            }
            _ => 0,
        }
    }

    /// What the store has said of itself, asked at `sent`.
    fn note_shortfall(&mut self, reply: &SyncReply, sent: Instant) {
        let (limit, used) = (reply.usage.limit, reply.usage.in_use.min(reply.usage.limit));
        // A part of a token counts as one there.
        let known = (used.saturating_sub(1), sent);
        // What was asked for before, and is told again, may have been given some time ago.
        let once = |request| self.requests.get(&request).is_some_and(|pending| pending.attempts == 1);
        let fresh = reply.grants.iter().filter(|grant| once(grant.request));
        let given: u64 = fresh.map(|grant| grant.units).sum();
        self.shortfall = match reply.again {
            // It may be fuller than it says: what was given, now or for later, is all that was there for certain.
            _ if reply.bound && !seeded!("remote_trusts_bounds") => (given.min(limit), sent),
            // What is given for later leaves nothing until then.
            Some(again) if given > 0 => (limit, self.clock.after(sent, again)),
            None if given > known.0 => (given.min(limit), sent),
            _ => known,
        };
    }

    /// What nothing is known of any more.
    fn forget_shortfall(&mut self, now: Instant) {
        self.shortfall = (0, now);
        self.note_missing(now);
    }

    /// So much of `units` that were taken with `ticket` is still missing, and until when it may be used.
    fn still_missing(&self, units: u64, ticket: &RemoteTicket, now: Instant) -> (u64, Instant) {
        let until = Instant::from_ticks(ticket.order);
        match (self.config.rule, self.config.prefetch) {
            (Rule::Rate { quota }, None) => {
                // Whole tokens are all that can be given back here, and of a small bucket a part of one is soon there again.
                let arrived = self.clock.after(now, self.config.expiry());
                let back = if arrived <= self.clock.after(until, LATENESS) {
                    units
                } else {
                    units.min(self.low_watermarks.since(ticket.token))
                };
                // Without a block of its own it must be spent before the store has as much again.
                let here = self.credit_total + self.upcoming() + back;
                let spare = (self.shortfall.0 + 1).saturating_sub(here);
                let lasts = spending(&quota, spare).saturating_mul(100) / 101;
                (back, until.min(self.clock.after(self.shortfall.1, lasts)))
            }
            (_, Some(_)) => (units.min(self.low_watermarks.since(ticket.token)), until),
            (_, None) => (units, until),
        }
    }
}

/// The waiters of this process.
//LINEDOC
impl Client {
    /// Joins those who wait for `need`. The wait may have ended at once; then nobody is woken.
    pub(super) fn join(&mut self, need: u64, kind: WaitKind, waker: Waker, now: Instant) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        if let Some(end) = self.immediate_end(need, now) {
            self.ended.insert(key, Ended { end, need, kind });
            self.wakers.push(waker);
            return key;
        }
        if self.unavailable && kind == WaitKind::Immediate {
            let end = End::Refused(Reason::Saturated);
            self.ended.insert(key, Ended { end, need, kind });
            self.wakers.push(waker);
            return key;
        }
        self.enqueue(key, need, kind, Some(waker));
        if self.unavailable {
            self.serve_share(now);
        }
        self.wake_driver();
        key
    }

    /// Takes a place where such a wait belongs.
    fn enqueue(&mut self, key: u64, need: u64, kind: WaitKind, waker: Option<Waker>) {
        let waiter = Waiter {
            need,
            kind,
            waker,
            request: None,
        };
        let places = if self.is_queued(kind) {
            &mut self.queue
        } else {
            &mut self.direct
        };
        places.insert(key, waiter);
    }

    /// Those who wait in turn stand in a line of this process, unless each of them stands in that of the store.
    fn is_queued(&self, kind: WaitKind) -> bool {
        kind != WaitKind::Immediate && (self.config.prefetch.is_some() || self.config.spends())
    }

    fn immediate_end(&mut self, need: u64, now: Instant) -> Option<End> {
        match self.acquire(need, now) {
            Ok(ticket) => Some(End::Granted(ticket)),
            Err(Reason::Saturated | Reason::RateExceeded | Reason::Oversized) => None,
            Err(reason) => Some(End::Refused(reason)),
        }
    }

    /// How the wait `key` ended, if it has. Otherwise `waker` will be woken; the one before is returned, to be dropped. A wait
    /// that is not known any more has ended with nothing.
    pub(super) fn poll_wait(&mut self, key: u64, waker: Option<Waker>, now: Instant) -> (Option<End>, Option<Waker>) {
        if let Some(End::Granted(ticket)) = self.ended.get(&key).map(|ended| ended.end) {
            // A permit that was lost before anybody took it is waited for once more, in the same place.
            let counts = !self.config.spends() && ticket.term == self.term && ticket.units > 0;
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

    /// True while the wait `key` has not ended.
    pub(super) fn waits(&self, key: u64) -> bool {
        self.queue.contains_key(&key) || self.direct.contains_key(&key)
    }

    /// The owner of `key` goes. What it had been given goes to whoever is next. Returns a waker, to be dropped.
    pub(super) fn leave(&mut self, key: u64, now: Instant) -> Option<Waker> {
        if let Some(ended) = self.ended.remove(&key) {
            if let End::Granted(ticket) = ended.end
                && !seeded!("remote_leaks_granted")
            {
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

    /// Ends the wait `key`, of which the waiter has been taken out.
    fn end(&mut self, key: u64, waiter: Waiter, end: End) {
        let (need, kind) = (waiter.need, waiter.kind);
        self.ended.insert(key, Ended { end, need, kind });
        self.wakers.extend(waiter.waker);
    }

    /// Serves the line from what is free.
    fn serve_queue(&mut self, now: Instant) {
        if self.unavailable {
            self.serve_share(now);
        }
        // While others wait, what comes free is ours for a turn only.
        if self.recall_at.is_some_and(|until| now >= until) {
            return;
        }
        while let Some((&key, head)) = self.queue.first_key_value()
            && head.need <= self.free(now)
        {
            let Some(waiter) = self.queue.remove(&key) else { return };
            let ticket = self.acquire_free(waiter.need, now);
            self.end(key, waiter, End::Granted(ticket));
        }
    }

    /// Serves everybody in order of arrival from this process's own share.
    fn serve_share(&mut self, now: Instant) {
        while let Some(key) = self.first() {
            let waiter = self.queue.get(&key).or_else(|| self.direct.get(&key));
            let Some(need) = waiter.map(|waiter| waiter.need) else {
                return;
            };
            let end = match self.acquire_unavailable(need, now) {
                Ok(ticket) => End::Granted(ticket),
                Err(reason @ (Reason::Unavailable | Reason::Closed)) => End::Refused(reason),
                Err(_) => {
                    let of = if let super::OnUnavailable::Share { of } = self.config.on_unavailable {
                        of.max(1)
                    } else {
                        1
                    };
                    let wait = self
                        .share
                        .wait(need.saturating_mul(of))
                        .filter(|_| self.config.spends());
                    let wait = wait.map(|micros| std::time::Duration::from_micros(micros.max(1)));
                    self.share_at = wait.map(|wait| self.clock.after(now, wait));
                    return;
                }
            };
            self.end_wait(key, end);
        }
    }

    /// Who came first of all who wait.
    fn first(&self) -> Option<u64> {
        let queue = self.queue.keys().next();
        let direct = self.direct.keys().next();
        queue.into_iter().chain(direct).min().copied()
    }

    /// Ends the wait of `key`, wherever it waits, and withdraws its wish.
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

    /// Ends all waits so.
    fn end_all_waits(&mut self, end: End) {
        while let Some(key) = self.first() {
            self.end_wait(key, end);
        }
    }

    /// Puts those back who had been granted permits of this term and have not taken them, each to its place: they wait again.
    fn requeue_granted(&mut self) {
        let term = self.term;
        let of_term = |end: &End| matches!(end, End::Granted(RemoteTicket { units: 1.., term: of, .. }) if *of == term);
        let lost = self.ended.iter().filter(|(_, ended)| of_term(&ended.end));
        let lost: Vec<_> = lost.map(|(&key, _)| key).collect();
        for key in lost {
            let Some(Ended { need, kind, .. }) = self.ended.remove(&key) else {
                continue;
            };
            if kind == WaitKind::Policy {
                let end = End::Lapsed;
                self.ended.insert(key, Ended { end, need, kind });
                continue;
            }
            // Its owner has been woken, and leaves a waker when it looks.
            self.enqueue(key, need, kind, None);
        }
    }
}

/// The passing of time: leases end, the store stays away, units lie idle.
impl Client {
    /// Lets time pass until `now`.
    pub(super) fn on_tick(&mut self, now: Instant) {
        let deadline = self.deadline().filter(|_| !self.config.spends());
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.on_lease_end(now);
        }
        let patience = self.config.unavailable_after;
        if let Some(since) = self.failing_since
            && !self.unavailable
            && self.clock.after(since, patience) <= now
        {
            self.declare_unavailable(now);
        }
        if self.unavailable && self.share_at.is_some_and(|at| at <= now) {
            self.share_at = None;
            self.serve_share(now);
        }
        self.drop_stale(now);
        self.return_idle(now);
        self.serve_queue(now);
    }

    /// The session is over for us: all that it held is lost. The store is told, in case that it thinks otherwise.
    fn on_lease_end(&mut self, now: Instant) {
        let Some(live) = self.live.take() else { return };
        self.end_session(&live);
        self.forget_session(now);
    }

    /// Forgets what belonged to the session. Who had been granted permits and has not taken them waits again.
    fn forget_session(&mut self, now: Instant) {
        self.requests.clear();
        self.withdrawn.clear();
        self.look_at = None;
        self.recall_at = None;
        for waiter in self.direct.values_mut() {
            waiter.request = None;
        }
        if self.config.spends() {
            return;
        }
        if self.held > 0 {
            self.counters.losses += 1;
        }
        self.requeue_granted();
        self.term += 1;
        self.held = 0;
        self.in_use = 0;
        self.in_use_by_token.clear();
        self.least_free = 0;
        self.idle_at = None;
        self.wake_watchers();
        if self.unavailable {
            self.serve_share(now);
        }
        self.wake_driver();
    }

    /// The store is to be told that the session is over.
    fn end_session(&mut self, live: &LiveSession) {
        const MOST: usize = 8;
        if self.session_ends.len() == MOST {
            let unheard = self.session_ends.pop_front();
            self.ended_sessions.extend(unheard.map(|(session, ..)| session));
        }
        self.session_ends.push_back((live.id, live.seq + 1, 0));
    }

    /// The store has not answered for too long.
    fn declare_unavailable(&mut self, now: Instant) {
        self.unavailable = true;
        match self.config.on_unavailable {
            OnUnavailable::Reject => self.end_all_waits(End::Refused(Reason::Unavailable)),
            OnUnavailable::Admit | OnUnavailable::Share { .. } => self.serve_share(now),
        }
        self.wake_watchers();
    }

    /// Takes in tokens whose time has come, and drops those that were not spent in time.
    pub(super) fn drop_stale(&mut self, now: Instant) {
        if self.credit.front().is_some_and(|&(until, _)| until <= now) {
            self.note_missing(now);
        }
        while let Some(&(from, units)) = self.upcoming.front()
            && from <= now
        {
            self.upcoming.pop_front();
            self.make_room(units, now);
            self.add_credit(units, self.clock.after(from, self.config.expiry()));
        }
        while let Some(&(until, units)) = self.credit.front()
            && until <= now
        {
            self.counters.expired += units;
            self.credit_total -= units;
            self.credit.pop_front();
        }
    }

    /// So many tokens come to hand: of what came back meanwhile no more is kept than a block holds beside them, or than whoever
    /// is first waits for.
    fn make_room(&mut self, units: u64, now: Instant) {
        let Some(prefetch) = self.config.prefetch else { return };
        let head = self.queue.first_key_value().map_or(0, |(_, head)| head.need);
        let over = (self.credit_total + units)
            .saturating_sub(prefetch.most.max(head))
            .min(self.credit_total);
        if over > 0 {
            self.counters.expired += over;
            self.note_missing(now);
            self.draw(over);
        }
    }

    /// Gives permits back that nobody has used for some time.
    fn return_idle(&mut self, now: Instant) {
        let Some(prefetch) = self.config.prefetch.filter(|_| !self.config.spends()) else {
            return;
        };
        if self.held == self.in_use {
            self.idle_at = None;
            return;
        }
        match self.idle_at {
            Some(at) if at > now => return,
            Some(_) => {
                let spare = (self.held - self.in_use).saturating_sub(prefetch.low);
                self.return_units(self.least_free.min(spare));
            }
            None => {}
        }
        self.least_free = self.held - self.in_use;
        self.idle_at = (self.least_free > prefetch.low).then(|| self.clock.after(now, prefetch.idle));
    }

    /// The next instant at which [`on_tick`](Self::on_tick) or the store has something to do.
    pub(super) fn next_tick(&self, now: Instant) -> Option<Instant> {
        let deadline = self.deadline().filter(|_| !self.config.spends());
        let away = self.failing_since.filter(|_| !self.unavailable);
        let away = away.map(|since| self.clock.after(since, self.config.unavailable_after));
        let idle = self.idle_at;
        let share = self.share_at.filter(|_| self.unavailable);
        let recall_at = self.recall_at.filter(|&until| until > now && !self.queue.is_empty());
        // Tokens that are kept at hand are replaced when they are dropped.
        let kept = self.config.prefetch.is_some_and(|prefetch| prefetch.low > 0);
        let stale = self.credit.front().map(|(until, _)| *until).filter(|_| kept);
        let upcoming = self.upcoming.front().map(|(from, _)| *from);
        [deadline, away, idle, share, recall_at, stale, upcoming]
            .into_iter()
            .flatten()
            .min()
    }
}

/// A look is a system call: units at hand are taken without one for this long.
const LOOK: Duration = Duration::from_millis(1);

/// Copies of the client in forked processes.
//COPYDOC
impl Client {
    /// Whether this is the copy in a forked process, looked at anew after [`LOOK`].
    #[inline]
    fn is_fork(&mut self, now: Instant) -> bool {
        if now >= self.known_until {
            self.check_process(now);
        }
        self.is_fork
    }

    /// Looks whether this is the copy in a forked process. A copy loses all that it holds, and closes, without a step.
    pub(super) fn check_process(&mut self, now: Instant) {
        self.known_until = self.clock.after(now, LOOK);
        if self.is_fork || std::process::id() == self.process || seeded!("remote_goes_on_in_a_copy") {
            return;
        }
        (self.is_fork, self.closed) = (true, true);
        self.live = None;
        self.session_ends.clear();
        self.forget_session(now);
        self.end_all_waits(End::Refused(Reason::Closed));
    }
}

#[cfg(test)]
mod tests {
    use crate::ManualClock;
    use crate::refusal::Reason;
    use crate::remote::{Key, Memory, Prefetch, Remote};
    use std::sync::Arc;

    #[test]
    fn a_limiter_in_a_forked_process_is_closed_and_says_nothing_to_the_store() {
        let clock = ManualClock::new();
        let store = Arc::new(Memory::new(&clock));
        let build = |prefetch| {
            let remote = Remote::permits(Key::new("shared").unwrap(), 8)
                .clock(&clock)
                .prefetch(prefetch);
            remote.in_place(Arc::clone(&store)).unwrap()
        };
        let (copy, other) = (build(Prefetch::up_to(4).keep(4)), build(Prefetch::up_to(4)));
        let held = clock.run(copy.acquire(1)).unwrap();
        clock.advance(super::LOOK);
        // As in a child, whose process has another number.
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
        // The parent has what it had.
        assert!(clock.run(other.acquire_now(5)).is_err());
        drop(clock.run(other.acquire_now(4)).unwrap());
    }
}
