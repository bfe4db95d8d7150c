//! The exchange with the store: requests, replies, notifications and changes of the rule.
//!
//! One request is under way at a time. What the store has not acknowledged is sent again with the next one.

use super::tokens::LATENESS;
use super::{Client, End, LiveSession, PendingRequest, WaitKind};
use crate::core::refusal::Reason;
use crate::remote::backend::{Grant, Notification, Request, Rule, Session, StoreError, SyncReply, SyncRequest};
use crate::rng::nth_fraction;
use crate::time::Instant;
use std::time::Duration;

/// After this many grants that came by notification alone the client acknowledges them.
const MAX_UNACKED: usize = 16;

/// How many times the end of a session is reported to a store that refuses it, or that does not answer a closed limiter.
const END_ATTEMPTS: u32 = 3;

/// The most requests, and the most withdrawn ones, in a sync: a store serves other sessions between two.
const MOST_REQUESTS: usize = 256;
const MOST_WITHDRAWN: usize = 4_096;

/// The next action of the driver.
#[derive(Debug)]
pub(in crate::remote) enum Action {
    /// Send this sync.
    Send(SyncRequest),
    /// Wait for a wake-up or a notification for the session, at most until the instant.
    Wait(Option<Instant>, Option<Session>),
    /// Nothing more to do.
    Stop,
}

/// A change of the rule under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    rule: Rule,
    number: u64,
    /// The sync that asks for the edition.
    asks: Option<(Session, u64)>,
    /// That sync was answered.
    is_known: bool,
}

/// The next sync.
impl Client {
    /// The action to take at `now`, after [`on_tick`](Self::on_tick).
    pub(in crate::remote) fn next_action(&mut self, now: Instant) -> Action {
        if self.closed {
            if let Some(live) = self.live.take() {
                self.end_session(&live);
                self.forget_session(now);
                self.end_all_waits(End::Refused(Reason::Closed));
            }
        }
        if let Some(at) = self.retry_at.filter(|&at| at > now) {
            return Action::Wait(Some(self.next_tick(now).map_or(at, |wakes| wakes.min(at))), None);
        }
        if self.closed || !self.ends_wait {
            if let Some((session, seq, tries)) = self.session_ends.front_mut() {
                *tries += 1;
                *seq += 1;
                return Action::Send(end_request(*session, *seq, &self.config));
            }
        }
        if self.closed {
            if !self.stopped {
                self.stopped = true;
                self.wake_watchers();
            }
            return Action::Stop;
        }
        if self.config.capacity {
            self.balance(now);
        } else {
            self.return_recalled(now);
            self.make_requests(now);
        }
        match self.compose_request(now) {
            Some(sync) => Action::Send(sync),
            // A session has ended meanwhile, or nothing else is left to be sent.
            None if !self.session_ends.is_empty() => {
                self.ends_wait = false;
                self.next_action(now)
            }
            // All requests are refused meanwhile, so none reaches the store. The end of an unused session probes whether it is
            // back.
            None if self.unavailable || self.misconfigured => {
                let client = self.config.client;
                let number = self.next_session();
                self.session_ends.push_back((Session { client, number }, 0, 0));
                self.next_action(now)
            }
            None => {
                let session = self.live.as_ref().map(|live| live.id);
                let keeps = session.is_some() && !self.config.spends();
                let renew = self.live.as_ref().map(|live| live.renew_at).filter(|_| keeps);
                let look = self.look_at.filter(|_| keeps);
                // Nothing is requested while granted tokens are to come.
                let asks = !self.tokens.are_upcoming();
                let fetch = self.fetch_at.filter(|_| asks && self.wants_ahead(now) > 0);
                let ask = self
                    .ask_at
                    .filter(|_| asks && (!self.queue.is_empty() || !self.direct.is_empty()));
                let round = self.round.map(|(_, until)| until);
                let round = round.filter(|&until| until > now && !self.queue.is_empty());
                let known = [renew, look, fetch, ask, round, self.next_tick(now)];
                // A window notifies only sessions in its queue.
                let is_notified = keeps || self.window_place.is_some();
                Action::Wait(known.into_iter().flatten().min(), session.filter(|_| is_notified))
            }
        }
    }

    /// Returns the free units when others wait for them and our turn is over.
    fn return_recalled(&mut self, now: Instant) {
        let ours = self.recall_at.is_some_and(|until| now < until) && !self.queue.is_empty();
        if self.recall_at.is_some() && !ours && !self.config.spends() && self.units.free() > 0 {
            self.counters.recalls += 1;
            self.return_units(self.units.free());
        }
    }

    /// The next sync, if there is anything to send.
    fn compose_request(&mut self, now: Instant) -> Option<SyncRequest> {
        let asks = self.requests.range(self.unanswered..).next().is_some();
        let has_reports = asks || self.debt > 0 || self.change.is_some();
        let stale = self.deadline().is_some_and(|deadline| deadline <= now);
        if stale && self.config.spends() {
            // The store may have forgotten this session's reports: the next one does not repeat them.
            self.abandon_session();
        }
        if self.live.is_none() {
            if !has_reports && self.debt == 0 {
                return None;
            }
            self.live = Some(self.begin(now));
        }
        let oldest = self.units.oldest();
        let live = self.live.as_mut()?;
        live.charged = live.charged.saturating_add(std::mem::take(&mut self.debt));
        let due = live.renew_at <= now && !self.config.spends();
        let idle = self.units.held == 0 && self.requests.is_empty() && self.queue.is_empty();
        if due && idle && live.returned == live.returned_acked && !has_reports {
            // An unused session is not kept at the store.
            let live = self.live.take()?;
            self.end_session(&live);
            self.look_at = None;
            self.recall_at = None;
            return None;
        }
        let syncs = self.look_at.is_some_and(|at| at <= now);
        let is_acked =
            self.withdrawn.is_empty() && live.returned == live.returned_acked && live.charged == live.charged_acked;
        if !(has_reports || due || syncs || !is_acked) {
            return None;
        }
        live.seq += 1;
        let (session, seq) = (live.id, live.seq);
        let change = self.rule_to_send(session, seq);
        let live = self.live.as_ref()?;
        let fresh = self.requests.range_mut(self.unanswered..);
        let sent = &mut self.counters.requests;
        let request = |(&id, pending): (&u64, &mut PendingRequest)| {
            if pending.attempts == 0 {
                *sent += 1;
                pending.asked = now;
            }
            pending.attempts += 1;
            Request {
                id,
                need: pending.need,
                want: pending.want,
                queue: pending.queue,
            }
        };
        // A rate answers one request at a time.
        let most = if self.config.spends() { 1 } else { MOST_REQUESTS };
        Some(SyncRequest {
            session: live.id,
            seq: live.seq,
            acked: live.acked,
            begin: live.acked == 0,
            ttl: self.config.ttl,
            returned: live.returned,
            charged: live.charged,
            requests: fresh.take(most).map(request).collect(),
            withdrawn: self.withdrawn.iter().copied().take(MOST_WITHDRAWN).collect(),
            seen: live.seen,
            limit: match change {
                Some(Rule::Permits { limit }) => Some(limit),
                _ => None,
            },
            oldest,
            edition: self.edition,
            change: change.filter(|_| self.config.spends()),
            keeps: self.config.prefetch.is_some() || self.has_spare(),
            end: false,
        })
    }

    fn begin(&mut self, now: Instant) -> LiveSession {
        LiveSession {
            id: Session {
                client: self.config.client,
                number: self.next_session(),
            },
            seq: 0,
            acked: 0,
            deadline: None,
            renew_at: now,
            returned: 0,
            returned_acked: 0,
            charged: 0,
            charged_acked: 0,
            seen: 0,
        }
    }

    fn next_session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }

    /// Refuses all requests from now on, and ends the session.
    pub(in crate::remote) fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.end_all_waits(End::Refused(Reason::Closed));
            self.wake_watchers();
            self.wake_driver();
        }
    }

    /// The driver has ended, or was dropped: nothing is sent any more. Permits stay valid until their lease ends.
    pub(in crate::remote) fn stop(&mut self) {
        self.close();
        self.stopped = true;
        self.wake_watchers();
    }
}

/// Requests for waiters, and ahead of demand.
impl Client {
    /// Below this many available units more are fetched ahead of demand.
    pub(super) fn low_water(&self) -> u64 {
        match self.config.prefetch {
            None => 0,
            Some(_) if self.recall_at.is_some() => 0,
            Some(prefetch) => self.tokens.low_water(&prefetch),
        }
    }

    /// How many units are to be fetched ahead of demand.
    pub(super) fn wants_ahead(&self, now: Instant) -> u64 {
        let free = self.free(now);
        let low = self.low_water();
        if free >= low {
            return 0;
        }
        let low = self.config.prefetch.map_or(0, |prefetch| prefetch.low);
        low.max(self.tokens.batch()).saturating_sub(free)
    }

    /// Makes requests for the waiters, and ahead of demand.
    pub(super) fn make_requests(&mut self, now: Instant) {
        let fresh = self.direct.range(self.unrequested..);
        let fresh: Vec<_> = fresh.map(|(&key, waiter)| (key, waiter.need, waiter.kind)).collect();
        for (key, need, kind) in fresh {
            self.unrequested = key + 1;
            let request = self.new_request(need, need, kind != WaitKind::Immediate, Some(key));
            if let Some(waiter) = self.direct.get_mut(&key) {
                waiter.request = Some(request);
            }
        }
        self.request_for_queue(now);
    }

    pub(super) fn request_for_queue(&mut self, now: Instant) {
        let free = self.free(now);
        let head = self
            .queue
            .first_key_value()
            .map(|(_, head)| head.need.saturating_sub(free).max(1));
        let id = self.queue_request;
        if let Some(pending) = self.requests.get(&id) {
            // A request for more than is needed by now would wait too long.
            let fits = head.map_or(!pending.queue, |need| pending.queue && pending.need <= need);
            if fits || self.config.spends() {
                return;
            }
            self.withdraw(id);
        }
        if head.is_none() {
            self.withdrawn.extend(self.window_place.take());
        }
        let most = self.config.prefetch.map_or(0, |prefetch| prefetch.most);
        if self.tokens.are_upcoming() {
            return;
        }
        let available_here = if self.config.spends() { free } else { self.units.held };
        let room = most.saturating_sub(available_here);
        match head {
            Some(_) if self.ask_at.is_some_and(|at| at > now) => {}
            // Its instant has passed.
            Some(_)
                if self
                    .round
                    .is_some_and(|(waiters, until)| self.queue.len() < waiters && now < until) =>
            {
                self.ask_at = None;
            }
            Some(need) => {
                let usage = self.usage.map(|(usage, _)| usage).unwrap_or_default();
                // A process in the store's queue has let the others ask.
                let part = self.part.as_mut().filter(|_| self.window_place.is_none());
                let part = match part.map_or(Ok(u64::MAX), |part| part.most(need, usage, now)) {
                    Ok(part) => part,
                    Err(until) => {
                        self.ask_at = Some(until);
                        return;
                    }
                };
                self.round = None;
                let all: u64 = self
                    .queue
                    .values()
                    .map(|waiter| waiter.need)
                    .sum::<u64>()
                    .saturating_sub(free);
                let ahead = if self.config.spends() {
                    self.tokens.begin_batch(now, &self.config);
                    self.tokens.batch()
                } else {
                    self.units.in_use / 2
                };
                let want = if self.config.prefetch.is_some() {
                    all.max(ahead).min(room)
                } else {
                    all
                };
                self.new_request(need, want.min(part).max(need), true, None);
            }
            None => {
                let lacks = self.wants_ahead(now) > 0;
                if lacks && self.fetch_at.is_none_or(|at| at <= now) {
                    if self.config.spends() {
                        self.tokens.begin_batch(now, &self.config);
                    }
                    let low = self.config.prefetch.map_or(0, |prefetch| prefetch.low);
                    let ahead = low.max(self.tokens.batch()).saturating_sub(free).min(room);
                    if ahead > 0 {
                        self.new_request(1, ahead, false, None);
                    }
                }
            }
        }
    }

    pub(super) fn new_request(&mut self, need: u64, want: u64, queue: bool, owner: Option<u64>) -> u64 {
        let id = self.next_request_id;
        self.next_request_id += 1;
        let pending = PendingRequest {
            need,
            want,
            queue,
            attempts: 0,
            asked: Instant::ZERO,
            owner,
        };
        self.requests.insert(id, pending);
        if owner.is_none() {
            self.queue_request = id;
        }
        id
    }

    /// Ends the request, and tells the store if the request was sent.
    pub(super) fn withdraw(&mut self, request: u64) {
        let removed = self.requests.remove(&request);
        if removed.is_some_and(|pending| pending.attempts > 0) && self.live.is_some() {
            self.withdrawn.insert(request);
            self.wake_driver();
        }
    }
}

/// Replies and notifications.
impl Client {
    /// Applies the answer to `sync`, which was sent at `sent`.
    pub(in crate::remote) fn on_reply(
        &mut self,
        sync: &SyncRequest,
        sent: Instant,
        now: Instant,
        answer: Result<SyncReply, StoreError>,
    ) {
        self.counters.syncs += 1;
        self.ends_wait = sync.end && answer.is_err();
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => return self.on_failure(sync, now, error),
        };
        self.note_answer();
        self.retry_at = None;
        self.last_error = None;
        if sync.end {
            self.session_ends.retain(|(session, ..)| *session != sync.session);
            return;
        }
        if self.config.spends() {
            self.tokens.note_missing(now, &self.config);
        }
        let known = self.usage.replace((reply.usage, sent));
        self.has_changed_limit |= known.is_some_and(|(known, _)| known.limit != reply.usage.limit);
        self.differs = reply.differs;
        self.note_change(sync, &reply, now);
        self.floor = self.floor.max(reply.floor);
        if self.live.as_ref().is_none_or(|live| live.id != sync.session) {
            return;
        }
        if !reply.alive {
            self.abandon_session();
            return self.forget_session(now);
        }
        let deadline = self.clock.after(sent, self.config.lease().saturating_sub(reply.age));
        if let Some(live) = &mut self.live {
            live.acked = live.acked.max(sync.seq);
            live.deadline = Some(deadline);
            // A store that did not renew the session is not asked again at once.
            let renewal = self
                .config
                .renewal
                .saturating_sub(reply.age)
                .max(self.config.renewal / 4);
            // The processes of a fleet, which may have started at once, renew at different instants. Where some have gone, others
            // may follow, and leave units.
            let is_shrinking = known.is_some_and(|(known, _)| reply.usage.sessions < known.sessions);
            let renewal = match self.config.capacity {
                true if is_shrinking => renewal / 2,
                true => renewal.mul_f64(1.0 - nth_fraction(live.id.client, live.seq) / 4.0),
                false => renewal,
            };
            live.renew_at = self.clock.after(sent, renewal);
            live.returned_acked = sync.returned;
            live.charged_acked = sync.charged;
        }
        for id in &sync.withdrawn {
            self.withdrawn.remove(id);
        }
        if let Some(last) = sync.requests.last() {
            self.unanswered = self.unanswered.max(last.id + 1);
        }
        self.look_at = reply
            .again
            .filter(|_| !self.config.spends())
            .map(|again| self.clock.after(now, again));
        let granted = !reply.grants.is_empty();
        let from = reply.again.map_or(now, |again| self.clock.after(now, again));
        // The grant of a request that was sent before may be older than this reply.
        let once = |request| self.requests.get(&request).is_some_and(|pending| pending.attempts == 1);
        let fresh = reply.grants.iter().filter(|grant| once(grant.request));
        let gave = fresh.map(|grant| grant.units).sum();
        self.tokens.note_usage(reply.usage, gave, reply.again, sent);
        let refused = |request: &Request| reply.grants.iter().all(|grant| grant.request != request.id);
        let refuses = self.config.spends() && sync.requests.iter().any(refused);
        for grant in &reply.grants {
            if refuses {
                self.skip_grant(grant);
            } else {
                self.on_grant(*grant, from, now);
            }
        }
        if let Some(part) = self.part.as_mut().filter(|_| granted) {
            part.note_left(reply.usage, now);
        }
        self.end_refused(sync, &reply, now);
        self.note_others(reply.others_wait, now);
        self.note_recall(reply.others_wait, granted, now);
        self.serve_queue(now);
        if deadline <= now && !self.config.spends() {
            self.on_lease_end(now);
        }
    }

    /// Drops a session that the store does not know.
    pub(super) fn abandon_session(&mut self) {
        if let Some(live) = self.live.take() {
            self.ended_sessions.push(live.id);
            self.debt = self.debt.saturating_add(live.charged - live.charged_acked);
        }
    }

    /// Drops the tokens of a request that was withdrawn before it was answered, and is granted beside the refusal of another:
    /// the instant from which they may be used is unknown.
    fn skip_grant(&mut self, grant: &Grant) {
        let Some(live) = &mut self.live else { return };
        if grant.token > live.seen {
            live.seen = grant.token;
            self.counters.expired += grant.units;
        }
    }

    /// Adds the units of a grant; those of a rate may be used from `from`.
    fn on_grant(&mut self, grant: Grant, from: Instant, now: Instant) {
        let Some(live) = &mut self.live else { return };
        if grant.token <= live.seen {
            return;
        }
        live.seen = grant.token;
        let pending = self.requests.remove(&grant.request);
        let owner = pending.and_then(|pending| pending.owner);
        if self.config.spends() {
            if pending.is_some_and(|pending| pending.queue) {
                let had_place = self.window_place.take().is_some();
                self.are_scarce = had_place || from > now;
            }
            if let Some(part) = &mut self.part {
                part.receive(grant.units, now);
            }
            let until = self.kept_until(pending.map_or(now, |pending| pending.asked), from, now);
            self.tokens.receive(grant.units, (from, until));
            self.drop_stale(now);
        } else {
            self.units.receive(grant.units, grant.token);
            self.receive_leased(grant.units, now);
        }
        let Some(waiter) = owner.and_then(|owner| Some((owner, self.direct.remove(&owner)?))) else {
            // Without a waiter the units stay available if there is a prefetch, and go back otherwise.
            if self.config.prefetch.is_none() && !self.config.admits_tokens() {
                self.return_units(grant.units);
            }
            return;
        };
        let ticket = self.acquire_free(waiter.1.need, now);
        self.end(waiter.0, waiter.1, End::Granted(ticket));
    }

    /// Until when tokens are kept that were asked for at `asked` and may be used from `from`.
    ///
    /// The store took those of a block when it was asked, or later, and each process spends its own within their expiry of that. So
    /// what is spent in a span was taken in that span or in the expiry before it, whatever the number of processes. A late block is
    /// kept for long enough to be used by waiters.
    fn kept_until(&self, asked: Instant, from: Instant, now: Instant) -> Instant {
        let (expiry, late) = (self.config.expiry(), self.clock.between(asked, now));
        let kept = match self.config.prefetch {
            Some(_) => expiry.saturating_sub(late).max(LATENESS.min(expiry)),
            None => expiry,
        };
        self.clock.after(from, kept)
    }

    /// Ends requests that were neither granted nor queued.
    fn end_refused(&mut self, sync: &SyncRequest, reply: &SyncReply, now: Instant) {
        let limit = reply.usage.limit;
        if !self.config.capacity {
            self.end_oversized(limit);
        }
        for request in &sync.requests {
            let oversized = request.need > limit;
            let queued = request.queue && !oversized && !self.config.spends();
            let Some(pending) = self.requests.get(&request.id).copied().filter(|_| !queued) else {
                continue;
            };
            self.withdraw(request.id);
            let reason = match (oversized, self.config.spends()) {
                (true, _) => Reason::Oversized,
                (false, true) => Reason::RateExceeded,
                (false, false) => Reason::Saturated,
            };
            if let Some(owner) = pending.owner {
                self.end_wait(owner, End::Refused(reason));
                continue;
            }
            let again = reply.again.map(|again| self.clock.after(now, again));
            if pending.queue && oversized {
                self.ask_at = None;
            } else if pending.queue {
                self.ask_at = again;
                if matches!(self.config.rule, Rule::Window { .. }) {
                    // The place in the queue lasts as long as the store hears of us, which may be late. Stores count
                    // microseconds.
                    let renewal = Duration::from_micros(self.config.renewal.as_micros() as u64);
                    let renewal = self.clock.after(now, renewal);
                    self.ask_at = again.map(|again| again.min(renewal));
                    self.window_place = Some(request.id);
                    if let Some(part) = &mut self.part {
                        part.note_full(now);
                    }
                }
            } else {
                let retry = self.clock.after(now, self.config.renewal);
                self.fetch_at = Some(again.unwrap_or(retry));
            }
        }
        if self.config.spends() {
            // A rate forgets the requests that it refuses.
            self.withdrawn.clear();
        }
    }

    /// Refuses waiters that need more than a lowered limit, and withdraws their requests: the store serves the waiters behind
    /// them.
    fn end_oversized(&mut self, limit: u64) {
        if self.most_needed <= limit {
            return;
        }
        self.most_needed = limit;
        let waiters = self.queue.iter().chain(&self.direct);
        let oversized: Vec<_> = waiters
            .filter(|(_, waiter)| waiter.need > limit)
            .map(|(&key, _)| key)
            .collect();
        for key in oversized {
            self.end_wait(key, End::Refused(Reason::Oversized));
        }
    }

    fn note_recall(&mut self, others_wait: bool, granted: bool, now: Instant) {
        let Some(prefetch) = self.config.prefetch.filter(|_| !self.config.spends()) else {
            return;
        };
        if !others_wait {
            self.recall_at = None;
        } else if granted || self.recall_at.is_none() {
            self.recall_at = Some(self.clock.after(now, prefetch.turn));
        }
    }

    /// The store has answered: it is not away.
    fn note_answer(&mut self) {
        self.failing_since = None;
        let (unavailable, misconfigured) = (&mut self.unavailable, &mut self.misconfigured);
        if std::mem::take(unavailable) | std::mem::take(misconfigured) {
            self.wake_watchers();
        }
    }

    /// Handles a failed sync, which may or may not have been carried out.
    fn on_failure(&mut self, sync: &SyncRequest, now: Instant, error: StoreError) {
        self.counters.failures += 1;
        match error {
            StoreError::Busy { .. } => self.note_answer(),
            StoreError::Refused { .. } => {
                self.note_answer();
                self.misconfigured = true;
                self.end_all_waits(End::Refused(Reason::Misconfigured));
                self.wake_watchers();
            }
            _ => _ = self.failing_since.get_or_insert(now),
        }
        // A store whose clock stands still while it is away finds the session alive afterwards. Its end is reported then.
        let silent = matches!(error, StoreError::Unreachable { .. } | StoreError::TimedOut { .. }) && !self.closed;
        self.last_error = Some(error);
        self.retry_at = Some(self.clock.after(now, self.config.retry));
        if sync.end {
            self.put_end_off(sync.session, silent);
        }
        self.on_tick(now);
    }

    /// Sends the end of a session again, behind the others. From a store that answers, `END_ATTEMPTS` failures are enough.
    fn put_end_off(&mut self, session: Session, silent: bool) {
        let at = self.session_ends.iter().position(|&(other, ..)| other == session);
        let end = at.and_then(|at| self.session_ends.remove(at));
        let again = end.filter(|&(_, _, tries)| silent || tries < END_ATTEMPTS);
        self.session_ends.extend(again);
    }

    /// Whether the store must still learn that this session has ended.
    pub(in crate::remote) fn is_ending(&self, session: Session) -> bool {
        self.session_ends
            .iter()
            .any(|(ended_sessions, ..)| *ended_sessions == session)
    }

    /// The sessions that the store may know: the current one, and those whose end it must still learn.
    pub(in crate::remote) fn sessions(&self) -> Vec<Session> {
        let ended_sessions = self.session_ends.iter().map(|&(ended_sessions, ..)| ended_sessions);
        ended_sessions.chain(self.live.as_ref().map(|live| live.id)).collect()
    }

    /// Applies a notification for `session`. If the lease may have ended, a sync finds out.
    pub(in crate::remote) fn on_notification(&mut self, session: Session, notification: &Notification, now: Instant) {
        self.on_tick(now);
        let Some(live) = self.live.as_ref().filter(|live| live.id == session) else {
            return;
        };
        let reply = match notification {
            Notification::Nothing => return,
            // There may be room earlier now.
            _ if self.config.spends() => {
                self.ask_at = None;
                return;
            }
            Notification::Reply(reply) if reply.alive && self.is_valid(now) => reply,
            Notification::Sync | Notification::Reply(_) => {
                self.look_at = Some(now);
                return;
            }
        };
        let seen = live.seen;
        if reply.grants.iter().all(|grant| grant.token <= seen) {
            // A sync was answered since, or the notification concerns something else, such as waiters of other sessions.
            if self.config.prefetch.is_some() || self.config.capacity {
                self.look_at = Some(now);
            }
            return;
        }
        // At least as recent as before; by how much is unknown.
        self.usage = self.usage.map(|(_, at)| (reply.usage, at));
        self.floor = self.floor.max(reply.floor);
        for grant in &reply.grants {
            self.on_grant(*grant, now, now);
        }
        self.note_others(reply.others_wait, now);
        self.note_recall(reply.others_wait, true, now);
        self.serve_queue(now);
        if self.requests.is_empty() {
            self.look_at = None;
        }
        if reply.grants.len() >= MAX_UNACKED {
            // The store repeats all of them each time, until it knows that they were received.
            self.look_at = Some(now);
        }
    }
}

/// Changes of the rule, for all processes.
///
/// The rule of a rate or window changes in two syncs. The first asks for the store's edition of the rule; the second changes it
/// if the edition is still the same. So a change whose answer was lost is carried out once, however often it is sent. If it was
/// carried out, or another process has changed the rule at the same time, the store is at a later edition, and that change
/// counts as the last one.
impl Client {
    /// Asks for another rule, of the same kind. Returns the number of the change.
    pub(in crate::remote) fn change(&mut self, rule: Rule) -> u64 {
        self.changes.0 += 1;
        self.change = Some(Change {
            rule,
            number: self.changes.0,
            asks: None,
            is_known: !self.config.spends(),
        });
        self.wake_driver();
        self.changes.0
    }

    /// True once the store has carried out the change with this number, or a later one.
    pub(in crate::remote) fn has_changed(&self, change: u64) -> bool {
        self.changes.1 >= change
    }

    /// The rule that this sync of the session asks for, if any.
    pub(super) fn rule_to_send(&mut self, session: Session, seq: u64) -> Option<Rule> {
        let change = self.change.as_mut()?;
        change.asks = Some((session, seq));
        change.is_known.then_some(change.rule)
    }

    /// Notes that the change was carried out, or that another process changed the rule.
    pub(super) fn note_change(&mut self, sync: &SyncRequest, reply: &SyncReply, now: Instant) {
        if let Some(change) = self.change.as_mut().filter(|_| reply.alive) {
            let Change { rule, number, .. } = *change;
            if sync.change == Some(rule) || matches!(rule, Rule::Permits { limit } if sync.limit == Some(limit)) {
                self.change = None;
                self.changes.1 = number;
                self.wake_watchers();
            } else if change.asks == Some((sync.session, sync.seq)) {
                change.is_known = true;
            }
        }
        let newer = reply.rule.filter(|(edition, _)| *edition > self.edition);
        if let Some((edition, rule)) = newer {
            self.edition = edition;
            self.config.rule = rule;
            self.has_changed_limit = true;
            self.fallback.adopt(&rule);
            self.tokens.forget_shortfall(now, &self.config);
            // There may be room earlier now.
            (self.ask_at, self.fetch_at) = (None, None);
        }
    }
}

fn end_request(session: Session, seq: u64, config: &super::Config) -> SyncRequest {
    SyncRequest {
        seq,
        begin: false,
        end: true,
        ..SyncRequest::first(session, config.ttl)
    }
}
