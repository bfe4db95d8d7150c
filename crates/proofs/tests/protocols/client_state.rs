//! The state of a client as words. All fields are named, so that a new one cannot be forgotten.

#[path = "leased.rs"]
mod leased;

use super::{Client, LiveSession, PendingRequest, RemoteTicket, Units, WaitKind, Waiter};
use crate::canonical::{Kind, Words, owner};
use crate::remote::backend::{Rule, Session, SyncRequest};
use crate::time::Instant;

impl Client {
    /// Visits the state of the client `id`.
    pub(crate) fn visit(&self, id: u64, words: &mut Words) {
        let Self {
            live,
            term,
            session_ends,
            ends_wait,
            units,
            capacity,
            tokens,
            queue,
            direct,
            ended,
            requests,
            queue_request,
            unanswered,
            unrequested,
            withdrawn,
            ask_at,
            fetch_at,
            look_at,
            recall_at,
            failing_since,
            retry_at,
            unavailable,
            misconfigured,
            change,
            closed,
            stopped,
            config,
            // Permits and leased units have none of these.
            debt: _,
            window_place: _,
            part: _,
            round: _,
            are_scarce: _,
            fallback: _,
            fallback_at: _,
            edition: _,
            // No model has policies.
            places: _,
            // Of no effect on what is done here.
            has_changed_limit: _,
            // Only above all others of their kind.
            sessions: _,
            next_key: _,
            next_request_id: _,
            changes: _,
            next_watcher: _,
            // An upper bound that saves a search.
            most_needed: _,
            // No model asks for more than the limit, which is the same all the time.
            usage: _,
            // Of no effect on what is done.
            clock: _,
            ended_sessions: _,
            floor: _,
            last_error: _,
            process: _,
            is_fork: _,
            known_until: _,
            differs: _,
            counters: _,
            watchers: _,
            driver_woken: _,
            driver: _,
            wakers: _,
        } = self;
        assert!(
            tokens.available() == 0 && !tokens.are_upcoming() && change.is_none(),
            "no model has any"
        );
        words.flag(live.is_some());
        if let Some(live) = live {
            live.visit(words);
        }
        words.number(Kind::Term, id, *term);
        words.plain(session_ends.len() as u64);
        // An end is one whatever its number, and is reported until the store answers: no client is closed before the end of a run.
        for &(session, _, _) in session_ends {
            words.session(session);
        }
        for flag in [*ends_wait, *unavailable, *misconfigured, *closed, *stopped] {
            words.flag(flag);
        }
        units.visit(config.prefetch.is_some(), words);
        for waiters in [queue, direct] {
            words.plain(waiters.len() as u64);
            for (&wait, waiter) in waiters {
                words.number(Kind::Wait, id, wait);
                waiter.visit(id, words);
            }
        }
        words.plain(ended.len() as u64);
        for (&wait, ended) in ended {
            words.number(Kind::Wait, id, wait);
            words.plain(ended.need);
            words.plain(ended.kind as u64);
            let super::End::Granted(ticket) = ended.end else {
                words.plain(0);
                continue;
            };
            words.plain(1);
            ticket.visit(id, words);
        }
        words.plain(requests.len() as u64);
        for (&request, pending) in requests {
            let PendingRequest {
                need,
                want,
                queue,
                attempts,
                // Of no effect on permits.
                asked: _,
                owner,
            } = *pending;
            words.number(Kind::Request, id, request);
            words.plain(need);
            words.plain(want);
            words.flag(queue);
            words.flag(attempts > 0);
            words.number(Kind::Wait, id, owner.unwrap_or(0));
        }
        let queue_request = Some(*queue_request).filter(|id| requests.contains_key(id));
        words.number(Kind::Request, id, queue_request.unwrap_or(0));
        let unanswered = requests.range(*unanswered..).next().map_or(0, |(&request, _)| request);
        words.number(Kind::Request, id, unanswered);
        let unrequested = direct.range(*unrequested..).next().map_or(0, |(&wait, _)| wait);
        words.number(Kind::Wait, id, unrequested);
        words.plain(withdrawn.len() as u64);
        for &request in withdrawn {
            words.number(Kind::Request, id, request);
        }
        for at in [ask_at, fetch_at, retry_at] {
            words.until(*at);
        }
        for at in [look_at, recall_at] {
            words.maybe(*at);
        }
        let failing_since = failing_since.filter(|_| !unavailable);
        words.flag(failing_since.is_some());
        words.at(failing_since.unwrap_or_default());
        assert!(capacity.is_none(), "leased units have a model of their own");
    }

    /// The units of a valid lease at `now`.
    pub(crate) fn live_units(&self, now: Instant) -> u64 {
        if self.is_valid(now) { self.units.held } else { 0 }
    }

    /// The session, while there is one.
    pub(crate) fn session(&self) -> Option<Session> {
        self.live.as_ref().map(|live| live.id)
    }

    /// Whether the units of `ticket` are still known.
    pub(crate) fn knows(&self, ticket: &RemoteTicket) -> bool {
        ticket.term == self.term
    }

    /// Whether syncs of the session begin it.
    pub(crate) fn begins(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.acked == 0)
    }

    pub(crate) fn store_rule(&self) -> Rule {
        self.config.store_rule()
    }
}

impl Units {
    fn visit(&self, are_prefetched: bool, words: &mut Words) {
        words.plain(self.held);
        words.plain(self.in_use);
        if are_prefetched {
            words.plain(self.least_free);
            words.maybe(self.idle_at);
        }
    }
}

impl LiveSession {
    fn visit(&self, words: &mut Words) {
        let Self {
            id,
            seq,
            acked,
            deadline,
            renew_at,
            returned,
            returned_acked,
            charged: _,
            charged_acked: _,
            seen,
        } = *self;
        words.session(id);
        words.number(Kind::Seq, owner(id), seq);
        words.number(Kind::Seq, owner(id), acked);
        words.maybe(deadline);
        words.due(renew_at);
        words.units(id, returned);
        words.units(id, returned_acked);
        words.seen(id, seen);
    }
}

impl Waiter {
    fn visit(&self, id: u64, words: &mut Words) {
        words.plain(self.need);
        words.plain(match self.kind {
            WaitKind::Queued => 0,
            WaitKind::Policy => 1,
            WaitKind::Immediate => 2,
        });
        words.number(Kind::Request, id, self.request.unwrap_or(0));
    }
}

impl RemoteTicket {
    /// Visits what an admission of the client `id` holds.
    pub(crate) fn visit(&self, id: u64, words: &mut Words) {
        words.plain(self.units);
        words.number(Kind::Term, id, self.term);
    }
}

/// Visits a sync on its way.
pub(crate) fn visit_sync(sync: &SyncRequest, words: &mut Words) {
    let SyncRequest {
        session,
        seq,
        acked,
        begin,
        ttl: _,
        returned,
        charged: _,
        requests,
        withdrawn,
        seen,
        limit,
        // Of a fence alone.
        oldest: _,
        edition: _,
        change: _,
        keeps,
        end,
    } = sync;
    words.session(*session);
    words.flag(*end);
    if *end {
        return;
    }
    words.number(Kind::Seq, owner(*session), *seq);
    words.number(Kind::Seq, owner(*session), *acked);
    for flag in [*begin, *keeps] {
        words.flag(flag);
    }
    words.units(*session, *returned);
    words.plain(requests.len() as u64);
    for request in requests {
        words.number(Kind::Request, session.client, request.id);
        words.plain(request.need);
        words.plain(request.want);
        words.flag(request.queue);
    }
    words.plain(withdrawn.len() as u64);
    for &request in withdrawn {
        words.number(Kind::Request, session.client, request);
    }
    words.seen(*session, *seen);
    words.plain(limit.map_or(0, |limit| limit + 1));
}
