//! What time does: leases that run out, stores that stay away, units that lie idle.

use super::{Away, Desk, End};
use crate::core::refusal::Reason;
use crate::time::Instant;

impl Desk {
    /// Lets time pass until `now`.
    pub(in crate::remote) fn tick(&mut self, now: Instant) {
        let deadline = self.deadline().filter(|_| !self.plan.spends());
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.lapse(now);
        }
        let patience = self.plan.away_after;
        if let Some(since) = self.failing_since
            && !self.away
            && self.clock.after(since, patience) <= now
        {
            self.go_away(now);
        }
        if self.away && self.share_at.is_some_and(|at| at <= now) {
            self.share_at = None;
            self.serve_share(now);
        }
        self.drop_stale(now);
        self.return_idle(now);
        self.serve(now);
    }

    /// The session is over for us: all that it held is lost. The store is told, in case that it thinks otherwise.
    pub(super) fn lapse(&mut self, now: Instant) {
        let Some(live) = self.live.take() else { return };
        self.part_with(&live);
        self.lose(now);
    }

    /// Forgets what belonged to the session. Who had been granted permits and has not taken them waits again.
    pub(super) fn lose(&mut self, now: Instant) {
        self.wishes.clear();
        self.withdrawn.clear();
        self.look_at = None;
        self.recall = None;
        for waiter in self.bound.values_mut() {
            waiter.wish = None;
        }
        if self.plan.spends() {
            return;
        }
        if self.held > 0 {
            self.tally.losses += 1;
        }
        self.recall_granted();
        self.term += 1;
        self.held = 0;
        self.in_use = 0;
        self.abroad.clear();
        self.least_free = 0;
        self.idle_at = None;
        self.tell_watchers();
        if self.away {
            self.serve_share(now);
        }
        self.poke();
    }

    /// The store is to be told that the session is over.
    pub(super) fn part_with(&mut self, live: &super::Live) {
        const MOST: usize = 8;
        if self.farewells.len() == MOST {
            let unheard = self.farewells.pop_front();
            self.parted.extend(unheard.map(|(session, ..)| session));
        }
        self.farewells.push_back((live.id, live.seq + 1, 0));
    }

    /// The store has not answered for too long.
    fn go_away(&mut self, now: Instant) {
        self.away = true;
        match self.plan.away {
            Away::Reject => self.dismiss_all(End::Refused(Reason::Unavailable)),
            Away::Admit | Away::Share { .. } => self.serve_share(now),
        }
        self.tell_watchers();
    }

    /// Takes in tokens whose time has come, and drops those that were not spent in time.
    pub(in crate::remote) fn drop_stale(&mut self, now: Instant) {
        if self.credit.front().is_some_and(|&(until, _)| until <= now) {
            self.note_missing(now);
        }
        while let Some(&(from, units)) = self.coming.front()
            && from <= now
        {
            self.coming.pop_front();
            self.make_room(units, now);
            self.add_credit(units, self.clock.after(from, self.plan.expiry()));
        }
        while let Some(&(until, units)) = self.credit.front()
            && until <= now
        {
            self.tally.expired += units;
            self.credit_total -= units;
            self.credit.pop_front();
        }
    }

    /// So many tokens come to hand: of what came back meanwhile no more is kept than a block holds beside them, or than whoever
    /// is first waits for.
    fn make_room(&mut self, units: u64, now: Instant) {
        let Some(blocks) = self.plan.blocks else { return };
        let head = self.line.first_key_value().map_or(0, |(_, head)| head.need);
        let over = (self.credit_total + units)
            .saturating_sub(blocks.most.max(head))
            .min(self.credit_total);
        if over > 0 {
            self.tally.expired += over;
            self.note_missing(now);
            self.draw(over);
        }
    }

    /// Gives permits back that nobody has used for some time.
    fn return_idle(&mut self, now: Instant) {
        let Some(blocks) = self.plan.blocks.filter(|_| !self.plan.spends()) else {
            return;
        };
        if self.held == self.in_use {
            self.idle_at = None;
            return;
        }
        match self.idle_at {
            Some(at) if at > now => return,
            Some(_) => {
                let spare = (self.held - self.in_use).saturating_sub(blocks.low);
                self.give_back(self.least_free.min(spare));
            }
            None => {}
        }
        self.least_free = self.held - self.in_use;
        self.idle_at = (self.least_free > blocks.low).then(|| self.clock.after(now, blocks.idle));
    }

    /// The next instant at which [`tick`](Self::tick) or the store has something to do.
    pub(in crate::remote) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let deadline = self.deadline().filter(|_| !self.plan.spends());
        let away = self.failing_since.filter(|_| !self.away);
        let away = away.map(|since| self.clock.after(since, self.plan.away_after));
        let idle = self.idle_at;
        let share = self.share_at.filter(|_| self.away);
        let recall = self.recall.filter(|&until| until > now && !self.line.is_empty());
        // Tokens that are kept at hand are replaced when they are dropped.
        let kept = self.plan.blocks.is_some_and(|blocks| blocks.low > 0);
        let stale = self.credit.front().map(|(until, _)| *until).filter(|_| kept);
        let coming = self.coming.front().map(|(from, _)| *from);
        [deadline, away, idle, share, recall, stale, coming]
            .into_iter()
            .flatten()
            .min()
    }
}
