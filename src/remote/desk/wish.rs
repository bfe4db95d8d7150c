//! What is asked for: for those who wait, and ahead of demand.

use super::{Desk, Kind, Wished};
use crate::time::Instant;

impl Desk {
    /// Below how many units at hand more are fetched ahead of demand.
    pub(super) fn low_water(&self) -> u64 {
        match self.plan.blocks {
            None => 0,
            Some(_) if self.recall.is_some() => 0,
            Some(blocks) if self.spent == 0 => blocks.low,
            Some(blocks) => blocks.low.max(self.block / 2),
        }
    }

    /// How many units are to be fetched ahead of demand.
    pub(super) fn wants_ahead(&self, now: Instant) -> u64 {
        let free = self.free(now);
        let low = self.low_water();
        if free >= low {
            return 0;
        }
        let low = self.plan.blocks.map_or(0, |blocks| blocks.low);
        low.max(self.block).saturating_sub(free)
    }

    /// How many tokens the demand of late takes in a span.
    pub(super) fn measured_block(&self, now: Instant) -> u64 {
        let Some(blocks) = self.plan.blocks else { return 0 };
        let passed = self.clock.between(self.fetched_at, now).as_nanos().max(1);
        let span = blocks.span.as_nanos();
        let block = u128::from(self.spent) * span / passed.max(span / 16);
        u64::try_from(block).unwrap_or(u64::MAX).min(blocks.most)
    }

    /// Makes wishes out of what is needed.
    pub(super) fn wish(&mut self, now: Instant) {
        let fresh = self.bound.iter().filter(|(_, waiter)| waiter.wish.is_none());
        let fresh: Vec<_> = fresh.map(|(&key, waiter)| (key, waiter.need, waiter.kind)).collect();
        for (key, need, kind) in fresh {
            let wish = self.new_wish(need, need, kind != Kind::Answer, Some(key));
            if let Some(waiter) = self.bound.get_mut(&key) {
                waiter.wish = Some(wish);
            }
        }
        self.wish_for_line(now);
    }

    pub(super) fn wish_for_line(&mut self, now: Instant) {
        let free = self.free(now);
        let head = self
            .line
            .first_key_value()
            .map(|(_, head)| head.need.saturating_sub(free).max(1));
        let wished = self.wishes.iter().find(|(_, wished)| wished.owner.is_none());
        let wished = wished.map(|(&id, wished)| (id, *wished));
        if let Some((id, wished)) = wished {
            // One that asks for more than is needed any more would wait for too long.
            let fits = head.map_or(!wished.queue, |need| wished.queue && wished.need <= need);
            if fits || self.plan.spends() {
                return;
            }
            self.withdraw(id);
        }
        if head.is_none()
            && let Some(placed) = self.placed.take()
        {
            self.withdrawn.insert(placed);
        }
        let most = self.plan.blocks.map_or(0, |blocks| blocks.most);
        if !self.coming.is_empty() {
            return;
        }
        let at_hand = if self.plan.spends() { free } else { self.held };
        let room = most.saturating_sub(at_hand);
        match head {
            Some(_) if self.ask_at.is_some_and(|at| at > now) => {}
            Some(need) => {
                let all: u64 = self
                    .line
                    .values()
                    .map(|waiter| waiter.need)
                    .sum::<u64>()
                    .saturating_sub(free);
                self.begin_block(now);
                let ahead = if self.plan.spends() {
                    self.block
                } else {
                    self.in_use / 2
                };
                let want = if self.plan.blocks.is_some() {
                    all.max(ahead).min(room)
                } else {
                    all
                };
                self.new_wish(need, want.max(need), true, None);
            }
            None => {
                let lacks = self.wants_ahead(now) > 0;
                if lacks && self.fetch_at.is_none_or(|at| at <= now) {
                    self.begin_block(now);
                    let low = self.plan.blocks.map_or(0, |blocks| blocks.low);
                    let ahead = low.max(self.block).saturating_sub(free).min(room);
                    if ahead > 0 {
                        self.new_wish(1, ahead, false, None);
                    }
                }
            }
        }
    }

    /// Measures the demand since the last block was taken.
    pub(super) fn begin_block(&mut self, now: Instant) {
        self.block = if self.plan.spends() {
            self.measured_block(now)
        } else {
            0
        };
        self.spent = 0;
        self.fetched_at = now;
    }

    pub(super) fn new_wish(&mut self, need: u64, want: u64, queue: bool, owner: Option<u64>) -> u64 {
        let id = self.next_wish;
        self.next_wish += 1;
        let wished = Wished {
            need,
            want,
            queue,
            told: false,
            said: 0,
            owner,
        };
        self.wishes.insert(id, wished);
        id
    }

    /// The wish is over. Whether it has reached the store or not, the store is told.
    pub(super) fn withdraw(&mut self, wish: u64) {
        if self.wishes.remove(&wish).is_some() && self.live.is_some() {
            self.withdrawn.insert(wish);
            self.poke();
        }
    }
}
