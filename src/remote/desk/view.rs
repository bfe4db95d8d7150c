//! How things stand, here and at the store, as far as is known.

use super::{Desk, RemoteTicket, SHARED, UNCOUNTED};
use crate::remote::backend::{Census, Rule, StoreError};
use crate::remote::fence::Fence;
use crate::remote::plan::{Away, MAX_UNITS};
use crate::time::Instant;

impl Desk {
    /// Whether what is held is still ours at `now`. The driver may be late to notice that it is not.
    pub(in crate::remote) fn is_valid(&self, now: Instant) -> bool {
        let deadline = self.live.as_ref().and_then(|live| live.deadline);
        deadline.is_some_and(|deadline| now < deadline)
    }

    /// Units that could be given on the spot, once what is stale has been dropped.
    pub(in crate::remote) fn free(&self, now: Instant) -> u64 {
        if self.plan.spends() {
            return self.credit_total;
        }
        if self.is_valid(now) { self.held - self.in_use } else { 0 }
    }

    /// True when the limit forbids `n` for good, or until it is raised, as the store has said of late. What it said before may
    /// have changed since: who asks is told.
    pub(in crate::remote) fn is_oversized(&self, n: u64, now: Instant) -> bool {
        let late = |at| self.clock.after(at, self.plan.renewal) <= now && !seeded!("remote_believes_for_ever");
        let known = self.census.filter(|(_, at)| !late(*at));
        n > known.map_or(MAX_UNITS, |(census, _)| census.limit) && !self.away
    }

    pub(in crate::remote) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(in crate::remote) fn is_away(&self) -> bool {
        self.away
    }

    /// True while the store is away and nobody is admitted for that.
    pub(in crate::remote) fn refuses_while_away(&self) -> bool {
        self.away && self.plan.away == Away::Reject
    }

    /// True when `n` would be admitted, `n` being more than zero for whoever does not come first.
    pub(in crate::remote) fn has_free(&mut self, n: u64, now: Instant) -> bool {
        n == 0 || self.waiting() == 0 && (n <= self.free(now) || self.away && self.plan.away == Away::Admit)
    }

    /// When `n` tokens will be at hand out of those that are and those that are granted for later, unless somebody else takes
    /// them; none when that is not enough, or others come first.
    pub(in crate::remote) fn comes_at(&self, n: u64) -> Option<Instant> {
        let mut arrived = 0;
        let mut coming = self.coming.iter().map(|&(from, units)| {
            arrived += units;
            let kept = self.credit.iter().filter(|&&(until, _)| until > from);
            (from, arrived + kept.map(|(_, units)| units).sum::<u64>())
        });
        let enough = coming.find(|&(_, there)| there >= n)?;
        Some(enough.0).filter(|_| self.waiting() == 0)
    }

    /// Whether what `ticket` was given belongs to somebody else by now.
    pub(in crate::remote) fn is_lost(&mut self, ticket: &RemoteTicket, now: Instant) -> bool {
        self.is_copy(now);
        self.counts(ticket) && (ticket.term != self.term || !self.is_valid(now))
    }

    /// When what `ticket` was given is lost, unless it is renewed.
    pub(in crate::remote) fn runs_out(&self, ticket: &RemoteTicket) -> Option<Instant> {
        self.deadline().filter(|_| self.counts(ticket))
    }

    pub(in crate::remote) fn has_fence(&self, ticket: &RemoteTicket) -> bool {
        !self.plan.spends() && ticket.term != UNCOUNTED && ticket.term != SHARED
    }

    fn counts(&self, ticket: &RemoteTicket) -> bool {
        self.has_fence(ticket) && ticket.units > 0
    }

    /// As it was set up, or as the store has it where somebody has changed it.
    pub(in crate::remote) fn rule(&self) -> Rule {
        match (self.plan.rule, self.census) {
            (Rule::Permits { .. }, Some((Census { limit, .. }, _))) => Rule::Permits { limit },
            (rule, _) => rule,
        }
    }

    /// Whether the store goes by another rule than this process was set up with, or another process does.
    pub(in crate::remote) fn differs(&self) -> bool {
        self.differs || self.rule() != self.plan.set_up
    }

    /// The limit, as far as it is known here.
    pub(in crate::remote) fn limit(&self) -> u64 {
        let set = match self.plan.rule {
            Rule::Permits { limit } | Rule::Window { limit, .. } => limit,
            Rule::Rate { quota } => quota.burst_size(),
        };
        self.census.map_or(set, |(census, _)| census.limit)
    }

    pub(in crate::remote) fn deadline(&self) -> Option<Instant> {
        self.live.as_ref().and_then(|live| live.deadline)
    }

    pub(in crate::remote) fn census(&self) -> Option<(Census, Instant)> {
        self.census
    }

    pub(in crate::remote) fn waiting(&self) -> u64 {
        (self.line.len() + self.bound.len()) as u64
    }

    pub(in crate::remote) fn held(&self) -> u64 {
        self.held
    }

    pub(in crate::remote) fn in_use(&self) -> u64 {
        self.in_use
    }

    /// The fencing token of a permit.
    pub(in crate::remote) fn fence(&self, ticket: &RemoteTicket) -> Option<Fence> {
        let RemoteTicket { token, order, .. } = *ticket;
        let floor = self.floor;
        self.has_fence(ticket).then_some(Fence { token, order, floor })
    }

    /// The token of the oldest grant of which something is held here, or may be used again.
    pub(super) fn oldest(&self) -> Option<u64> {
        let used = self.abroad.keys().next().copied();
        (self.held > 0).then(|| used.unwrap_or(self.token))
    }

    /// Why the last step failed, if it did.
    pub(in crate::remote) fn last_error(&self) -> Option<&StoreError> {
        self.last_error.as_ref()
    }

    pub(in crate::remote) fn is_gone(&self) -> bool {
        self.gone
    }
}
