//! What is made of the store's answers, and of its news.

use super::{Desk, End};
use crate::core::refusal::Reason;
use crate::remote::backend::{Grant, News, Reply, Rule, Session, Step, StoreError, Wish};
use crate::time::Instant;
use std::time::Duration;

/// So many grants that were told of by news alone are acknowledged.
const MOST_UNHEARD: usize = 16;

/// How often the store is told that a session is over, when it does not answer.
const FAREWELLS: u32 = 3;

impl Desk {
    /// The answer to `step`, which was sent at `sent`.
    pub(in crate::remote) fn hear(
        &mut self,
        step: &Step,
        sent: Instant,
        now: Instant,
        answer: Result<Reply, StoreError>,
    ) {
        self.tally.steps += 1;
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => return self.fail(step, now, error),
        };
        self.failing_since = None;
        self.retry_at = None;
        self.last_error = None;
        if std::mem::take(&mut self.away) {
            self.tell_watchers();
        }
        if step.end {
            self.farewells.retain(|(session, ..)| *session != step.session);
            return;
        }
        self.note_missing(now);
        self.census = Some((reply.census, sent));
        self.differs = reply.differs;
        self.note_change(step, &reply, now);
        self.floor = self.floor.max(reply.floor);
        if self.live.as_ref().is_none_or(|live| live.id != step.session) {
            return;
        }
        if !reply.alive {
            self.unmake();
            return self.lose(now);
        }
        let from = if seeded!("remote_leases_from_the_answer") {
            now
        } else {
            sent
        };
        let deadline = self.clock.after(from, self.plan.lease().saturating_sub(reply.age));
        if let Some(live) = &mut self.live {
            live.heard = live.heard.max(step.seq);
            live.deadline = Some(deadline);
            // A store that has not renewed the session is not asked again at once.
            let renewal = self.plan.renewal.saturating_sub(reply.age).max(self.plan.renewal / 4);
            live.renew_at = self.clock.after(sent, renewal);
            live.returned_told = step.returned;
            live.charged_told = step.charged;
        }
        for id in &step.withdrawn {
            self.withdrawn.remove(id);
        }
        for wish in &step.wishes {
            if let Some(wished) = self.wishes.get_mut(&wish.id) {
                wished.told = true;
            }
        }
        self.look_at = reply
            .again
            .filter(|_| !self.plan.spends())
            .map(|again| self.clock.after(now, again));
        let granted = !reply.grants.is_empty();
        let from = reply.again.map_or(now, |again| self.clock.after(now, again));
        self.note_short(&reply, sent);
        let refused = |wish: &Wish| reply.grants.iter().all(|grant| grant.wish != wish.id);
        let refuses = self.plan.spends() && step.wishes.iter().any(refused);
        for grant in &reply.grants {
            if refuses {
                self.pass_by(grant);
            } else {
                self.receive(*grant, from, now);
            }
        }
        self.dismiss_refused(step, &reply, now);
        self.note_recall(reply.others_wait, granted, now);
        self.serve(now);
        if deadline <= now && !self.plan.spends() {
            self.lapse(now);
        }
    }

    /// The session is not known to the store.
    pub(super) fn unmake(&mut self) {
        if let Some(live) = self.live.take() {
            self.parted.push(live.id);
            self.debt = self.debt.saturating_add(live.charged - live.charged_told);
        }
    }

    /// Tokens of a wish that was withdrawn before it was answered, told beside the refusal of another: nobody knows any more from
    /// when on they may be used.
    fn pass_by(&mut self, grant: &Grant) {
        let Some(live) = &mut self.live else { return };
        if grant.token > live.seen {
            live.seen = grant.token;
            self.tally.expired += grant.units;
        }
    }

    /// Units that a wish was given; those of a rate may be used at `from`.
    fn receive(&mut self, grant: Grant, from: Instant, now: Instant) {
        let Some(live) = &mut self.live else { return };
        if grant.token <= live.seen {
            return;
        }
        live.seen = grant.token;
        if self.abroad.get(&self.token) == Some(&0) {
            self.abroad.remove(&self.token);
        }
        self.token = grant.token;
        self.order = 0;
        let wished = self.wishes.remove(&grant.wish);
        let owner = wished.and_then(|wished| wished.owner);
        if self.plan.spends() {
            if wished.is_some_and(|wished| wished.queue) {
                self.placed = None;
            }
            let at = self.coming.partition_point(|&(other, _)| other <= from);
            self.coming.insert(at, (from, grant.units));
            self.drop_stale(now);
        } else {
            self.held += grant.units;
        }
        let Some(waiter) = owner.and_then(|owner| Some((owner, self.bound.remove(&owner)?))) else {
            // Nobody waits for it any more: with blocks it is at hand, and without it goes back.
            if self.plan.blocks.is_none() && !self.plan.spends() {
                self.give_back(grant.units);
            }
            return;
        };
        let ticket = self.take_free(waiter.1.need, now);
        self.end(waiter.0, waiter.1, End::Granted(ticket));
    }

    /// Wishes that were neither granted nor queued.
    fn dismiss_refused(&mut self, step: &Step, reply: &Reply, now: Instant) {
        let limit = reply.census.limit;
        self.dismiss_oversized(limit);
        for wish in &step.wishes {
            let oversized = wish.need > limit;
            let queued = wish.queue && !oversized && !self.plan.spends();
            let Some(wished) = self.wishes.get(&wish.id).copied().filter(|_| !queued) else {
                continue;
            };
            self.withdraw(wish.id);
            let reason = match (oversized, self.plan.spends()) {
                (true, _) => Reason::Oversized,
                (false, true) => Reason::RateExceeded,
                (false, false) => Reason::Saturated,
            };
            if let Some(owner) = wished.owner {
                self.dismiss(owner, End::Refused(reason));
                continue;
            }
            let again = reply.again.map(|again| self.clock.after(now, again));
            if wished.queue && oversized {
                self.ask_at = None;
            } else if wished.queue {
                self.ask_at = again;
                if matches!(self.plan.rule, Rule::Window { .. }) {
                    // The place in line is kept as long as the store hears of us, which may be late.
                    // Stores count microseconds.
                    let renewal = Duration::from_micros(self.plan.renewal.as_micros() as u64);
                    let renewal = self.clock.after(now, renewal);
                    self.ask_at = again.map(|again| again.min(renewal));
                    self.placed = Some(wish.id);
                }
            } else {
                let retry = self.clock.after(now, self.plan.renewal);
                self.fetch_at = Some(again.unwrap_or(retry));
            }
        }
        if self.plan.spends() {
            // What a rate refuses it has forgotten.
            self.withdrawn.clear();
        }
    }

    /// Refuses waiters that need more than the limit, which was lowered since they came, and withdraws their wishes: the store
    /// serves the waiters behind them.
    fn dismiss_oversized(&mut self, limit: u64) {
        let waiters = self.line.iter().chain(&self.bound);
        let oversized: Vec<_> = waiters
            .filter(|(_, waiter)| waiter.need > limit)
            .map(|(&key, _)| key)
            .collect();
        for key in oversized {
            self.dismiss(key, End::Refused(Reason::Oversized));
        }
    }

    fn note_recall(&mut self, others_wait: bool, granted: bool, now: Instant) {
        let Some(blocks) = self.plan.blocks.filter(|_| !self.plan.spends()) else {
            return;
        };
        if !others_wait {
            self.recall = None;
        } else if granted || self.recall.is_none() {
            self.recall = Some(self.clock.after(now, blocks.turn));
        }
    }

    /// The step may or may not have been carried out.
    fn fail(&mut self, step: &Step, now: Instant, error: StoreError) {
        self.tally.failures += 1;
        if seeded!("remote_says_it_once")
            && let Some(live) = &mut self.live
        {
            live.returned_told = step.returned;
        }
        if matches!(error, StoreError::Busy { .. }) {
            // It answers.
            self.failing_since = None;
            if std::mem::take(&mut self.away) {
                self.tell_watchers();
            }
        } else {
            self.failing_since.get_or_insert(now);
        }
        self.last_error = Some(error);
        self.retry_at = Some(self.clock.after(now, self.plan.retry));
        if step.end {
            // After so many attempts it is left to expire.
            self.farewells
                .retain(|(session, _, tries)| *session != step.session || *tries < FAREWELLS);
        }
        self.tick(now);
    }

    /// Whether the store is still to be told that this session is over.
    pub(in crate::remote) fn takes_leave_of(&self, session: Session) -> bool {
        self.farewells.iter().any(|(parted, ..)| *parted == session)
    }

    /// Those that the store may know: the one that we have, and those of which it is still to be told that they are over.
    pub(in crate::remote) fn sessions(&self) -> Vec<Session> {
        let parted = self.farewells.iter().map(|&(parted, ..)| parted);
        parted.chain(self.live.as_ref().map(|live| live.id)).collect()
    }

    /// There is news for `session`. Who does not know any more whether it lives looks for itself.
    pub(in crate::remote) fn hear_news(&mut self, session: Session, news: &News, now: Instant) {
        self.tick(now);
        let Some(live) = self.live.as_ref().filter(|live| live.id == session) else {
            return;
        };
        let reply = match news {
            News::Nothing => return,
            // There may be room earlier now.
            _ if self.plan.spends() => {
                self.ask_at = None;
                return;
            }
            News::Told(reply) if reply.alive && self.is_valid(now) => reply,
            News::Look | News::Told(_) => {
                self.look_at = Some(now);
                return;
            }
        };
        let seen = live.seen;
        if reply.grants.iter().all(|grant| grant.token <= seen) {
            // A step has been answered since; or it is about something else, which is for those who keep blocks.
            if self.plan.blocks.is_some() {
                self.look_at = Some(now);
            }
            return;
        }
        // At least as new as what was known, and nobody knows by how much.
        self.census = self.census.map(|(_, at)| (reply.census, at));
        self.floor = self.floor.max(reply.floor);
        for grant in &reply.grants {
            self.receive(*grant, now, now);
        }
        self.note_recall(reply.others_wait, true, now);
        self.serve(now);
        if self.wishes.is_empty() {
            self.look_at = None;
        }
        if reply.grants.len() >= MOST_UNHEARD && !seeded!("remote_never_acknowledges") {
            // The store tells all of them each time, until it knows that they were heard of.
            self.look_at = Some(now);
        }
    }
}
