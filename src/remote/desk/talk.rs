//! What is said to the store. One step is under way at a time: what is not known to have
//! arrived is said again by the next.

use super::{Desk, End, Live, Wished};
use crate::core::refusal::Reason;
use crate::remote::backend::{Rule, Session, Step, Wish};
use crate::time::Instant;

/// What the driver has to do next.
#[derive(Debug)]
pub(in crate::remote) enum Todo {
    /// Take this step.
    Send(Step),
    /// Wait: for a poke, for news of the session, at most until the instant.
    Wait(Option<Instant>, Option<Session>),
    /// Nothing, for good.
    Stop,
}

impl Desk {
    /// What is to be done at `now`, after [`tick`](Self::tick).
    pub(in crate::remote) fn next(&mut self, now: Instant) -> Todo {
        if self.closed
            && let Some(live) = self.live.take()
        {
            self.part_with(&live);
            self.lose(now);
            self.dismiss_all(End::Refused(Reason::Closed));
        }
        if let Some(at) = self.retry_at.filter(|&at| at > now) {
            return Todo::Wait(Some(self.wakes_at(now).map_or(at, |wakes| wakes.min(at))), None);
        }
        if let Some((session, seq, tries)) = self.farewells.front_mut() {
            *tries += 1;
            *seq += 1;
            return Todo::Send(farewell(*session, *seq, &self.plan));
        }
        if self.closed {
            if !self.gone {
                self.gone = true;
                self.tell_watchers();
            }
            return Todo::Stop;
        }
        self.answer_recall(now);
        self.wish(now);
        match self.compose(now) {
            Some(step) => Todo::Send(step),
            // Something has come up meanwhile.
            None if !self.farewells.is_empty() => self.next(now),
            // Everybody is refused meanwhile, so that nobody asks: whether the store is back is found by taking leave of it.
            None if self.away && !seeded!("remote_stays_away") => {
                let client = self.plan.client;
                let number = self.next_session();
                self.farewells.push_back((Session { client, number }, 0, 0));
                self.next(now)
            }
            None => {
                let session = self.live.as_ref().map(|live| live.id);
                let keeps = session.is_some() && !self.plan.spends();
                let renew = self.live.as_ref().map(|live| live.renew_at).filter(|_| keeps);
                let look = self.look_at.filter(|_| keeps);
                // Nothing is asked for while something is to come.
                let asks = self.coming.is_empty();
                let fetch = self.fetch_at.filter(|_| asks && self.wants_ahead(now) > 0);
                let ask = self
                    .ask_at
                    .filter(|_| asks && (!self.line.is_empty() || !self.bound.is_empty()));
                let known = [renew, look, fetch, ask, self.wakes_at(now)];
                // A window has news for those who have a place in its line.
                let hears = keeps || self.placed.is_some();
                Todo::Wait(known.into_iter().flatten().min(), session.filter(|_| hears))
            }
        }
    }

    /// Gives back what is free, when others wait for it and our turn is over.
    fn answer_recall(&mut self, now: Instant) {
        let ours = self.recall.is_some_and(|until| now < until) && !self.line.is_empty();
        if self.recall.is_some() && !ours && !self.plan.spends() {
            self.give_back(self.held - self.in_use);
        }
    }

    /// The next step, if there is something to say.
    fn compose(&mut self, now: Instant) -> Option<Step> {
        let asks = self.wishes.values().any(|wished| !wished.told);
        let speaks = asks || self.debt > 0 || self.change.is_some();
        let stale = self.deadline().is_some_and(|deadline| deadline <= now);
        if stale && self.plan.spends() {
            // The store may have forgotten what it was told in this session: the next one does not say it again.
            self.unmake();
        }
        if self.live.is_none() {
            if !speaks && self.debt == 0 {
                return None;
            }
            self.live = Some(self.begin(now));
        }
        let oldest = self.oldest();
        let live = self.live.as_mut()?;
        live.charged = live.charged.saturating_add(std::mem::take(&mut self.debt));
        let due = live.renew_at <= now && !self.plan.spends();
        let idle = self.held == 0 && self.wishes.is_empty() && self.line.is_empty();
        if due && idle && live.returned == live.returned_told && !speaks {
            // Nothing is kept at the store by somebody who has no use for it.
            let live = self.live.take()?;
            self.part_with(&live);
            self.look_at = None;
            self.recall = None;
            return None;
        }
        let looks = self.look_at.is_some_and(|at| at <= now);
        let told =
            self.withdrawn.is_empty() && live.returned == live.returned_told && live.charged == live.charged_told;
        if !(speaks || due || looks || !told) {
            return None;
        }
        live.seq += 1;
        let (session, seq) = (live.id, live.seq);
        let change = self.rule_to_say(session, seq);
        let live = self.live.as_ref()?;
        let fresh = self.wishes.iter_mut().filter(|(_, wished)| !wished.told);
        let wish = |(&id, wished): (&u64, &mut Wished)| {
            wished.said += 1;
            Wish {
                id,
                need: wished.need,
                want: wished.want,
                queue: wished.queue,
            }
        };
        // A rate answers one wish at a time.
        let most = if self.plan.spends() { 1 } else { usize::MAX };
        Some(Step {
            session: live.id,
            seq: live.seq,
            heard: live.heard,
            begin: live.heard == 0,
            ttl: self.plan.ttl,
            returned: live.returned,
            charged: live.charged,
            wishes: fresh.take(most).map(wish).collect(),
            withdrawn: self.withdrawn.iter().copied().collect(),
            seen: live.seen,
            limit: match change {
                Some(Rule::Permits { limit }) => Some(limit),
                _ => None,
            },
            oldest,
            edition: self.edition,
            change: change.filter(|_| self.plan.spends()),
            keeps: self.plan.blocks.is_some(),
            end: false,
        })
    }

    fn begin(&mut self, now: Instant) -> Live {
        Live {
            id: Session {
                client: self.plan.client,
                number: self.next_session(),
            },
            seq: 0,
            heard: 0,
            deadline: None,
            renew_at: now,
            returned: 0,
            returned_told: 0,
            charged: 0,
            charged_told: 0,
            seen: 0,
        }
    }

    fn next_session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }

    /// Refuses everybody from now on, and ends the session.
    pub(in crate::remote) fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.dismiss_all(End::Refused(Reason::Closed));
            self.tell_watchers();
            self.poke();
        }
    }
}

fn farewell(session: Session, seq: u64, plan: &crate::remote::plan::Plan) -> Step {
    Step {
        seq,
        begin: false,
        end: true,
        ..Step::first(session, plan.ttl)
    }
}
