//! A leased rate: how many units a process asks for, keeps, and gives back.
//!
//! The units are permits to the store. Nothing is asked for without demand, and nothing goes back while no other process waits.
//! While others wait, a process with waiters keeps an equal share, or what its ask takes, and one without them keeps what its recent
//! demand takes. An ask larger than the units held *gathers*: all units go back, and all that it needs are requested at once, in the
//! store's queue. So no two processes hold a part each and wait for the other's.
//!
//! Where the asks of all processes do not fit, they take *turns*: all units go back when an ask was served, at which instant they hold
//! least. A turn lasts so long that each process has one in a time to live.

use super::share::{Share, UNITS};
use super::{Client, Instant, Loan, RemoteTicket, Returned};
use crate::remote::model::Fill;
use std::time::Duration;

/// The leased part of a rate, and the demand for it.
#[derive(Debug)]
#[cfg_attr(tollgate_proofs, derive(Clone))]
pub(super) struct Capacity {
    pub(super) share: Share,
    /// Tokens taken in the current span of demand and in the one before, and the largest ask of both.
    spent: (u64, u64),
    largest: u64,
    /// When the next span begins.
    next_span: Instant,
    /// The largest ask that was refused since the last admission.
    unmet: u64,
    /// Since when other sessions wait, without a break, or since when there are units.
    others_wait: Option<Instant>,
    /// Units were free at the last renewal, beyond an equal share here.
    was_free: bool,
    /// The waiter that was first when units came, or when others began to wait: it is served before the units go.
    turn: Option<u64>,
    /// The microsecond by which the tokens last lent are spent.
    lent_until: u64,
}

impl Capacity {
    pub(super) fn new(fill: Fill, now: Instant, micros: u64) -> Self {
        Self {
            share: Share::new(fill, micros),
            spent: (0, 0),
            largest: 0,
            next_span: now,
            unmet: 0,
            others_wait: None,
            was_free: false,
            turn: None,
            lent_until: 0,
        }
    }
}

impl Capacity {
    /// Counts what was spent of a loan.
    pub(super) fn take_back(&mut self, returned: &Returned) {
        let spent = returned.lent - returned.left;
        self.share.spend_lent(spent, self.lent_until);
        self.spent.0 = self.spent.0.saturating_add(spent);
    }
}

/// Admissions from the leased part.
impl Client {
    /// Takes `n` tokens that are there.
    pub(super) fn take_leased(&mut self, n: u64, now: Instant) -> Option<RemoteTicket> {
        let micros = self.micros(now);
        let capacity = self.capacity.as_mut()?;
        capacity.share.take(n, micros);
        capacity.unmet = 0;
        capacity.largest = capacity.largest.max(n);
        capacity.spent.0 = capacity.spent.0.saturating_add(n);
        Some(RemoteTicket::leased(n, now))
    }

    /// What can be lent of the leased part.
    pub(super) fn loan_of_tokens(&mut self, now: Instant, until: Instant) -> Option<Loan> {
        let micros = self.micros(now);
        let capacity = self.capacity.as_mut()?;
        let length = Duration::from_micros(capacity.share.loan_length());
        let until = until.min(self.clock.after(now, length));
        let tokens = if until > now { capacity.share.tokens(micros) } else { 0 };
        let since = self.clock.between(Instant::ZERO, until);
        capacity.lent_until = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        Some(Loan {
            units: tokens.min(Loan::MOST),
            most: capacity.largest,
            until,
            term: Loan::TOKENS,
            token: 0,
            order: 0,
        })
    }

    /// Records that `n` were refused: a lease is asked for if it may help.
    pub(super) fn note_unmet(&mut self, n: u64, now: Instant) {
        let is_due = self.fetch_at.is_none_or(|at| at <= now);
        let Some(capacity) = &mut self.capacity else { return };
        let is_news = capacity.unmet < n && (self.units.held < capacity.share.units_for(n) || is_due);
        capacity.unmet = capacity.unmet.max(n);
        if is_news {
            self.wake_driver();
        }
    }

    /// Gives back `n` of the tokens of `ticket`, as far as they are still missing.
    pub(super) fn refund_leased(&mut self, n: u64, taken: u64, ticket: &RemoteTicket, now: Instant) {
        let (micros, taken_at) = (self.micros(now), self.micros(Instant::from_ticks(ticket.token)));
        if let Some(capacity) = &mut self.capacity {
            capacity.share.refund(n, taken, taken_at, micros);
            capacity.spent.0 = capacity.spent.0.saturating_sub(n);
        }
        self.serve_queue(now);
    }

    /// When the first waiter is served from the units held, or the debt repaid.
    pub(super) fn served_at(&self, now: Instant) -> Option<Instant> {
        let micros = self.micros(now);
        let share = &self.capacity.as_ref()?.share;
        let head = self.queue.first_key_value().map(|(_, head)| head.need);
        let wait = match head.and_then(|need| share.wait(need, micros)) {
            None if share.in_debt(micros) => share.wait(0, micros),
            wait => wait,
        };
        // A part of this microsecond may be over.
        let wait = wait.filter(|&wait| wait > 0)?;
        Some(self.clock.after(now, Duration::from_micros(wait)))
    }
}

/// The exchange of units with the store.
impl Client {
    /// The store has granted units.
    pub(super) fn receive_leased(&mut self, units: u64, now: Instant) {
        let (micros, head) = (self.micros(now), self.queue.keys().next().copied());
        let Some(capacity) = &mut self.capacity else { return };
        capacity.share.receive(units, micros);
        if self.units.held == units {
            (capacity.turn, capacity.others_wait) = (head, capacity.others_wait.map(|_| now));
        }
    }

    /// The store has said whether others wait.
    pub(super) fn note_others(&mut self, others_wait: bool, now: Instant) {
        let head = self.queue.keys().next().copied();
        let Some(capacity) = &mut self.capacity else { return };
        if !others_wait {
            (capacity.others_wait, capacity.turn) = (None, None);
        } else if capacity.others_wait.is_none() {
            (capacity.others_wait, capacity.turn) = (Some(now), head);
        }
    }

    /// Whether the store should notify this process when others wait.
    pub(super) fn has_spare(&self) -> bool {
        // A process in use of less than its share finds out when it renews: else each waiter would wake the whole fleet.
        let is_idle = |capacity: &Capacity| self.queue.is_empty() && capacity.spent == (0, 0);
        let head = self.queue.first_key_value().map_or(0, |(_, head)| head.need);
        let keeps = |capacity: &Capacity| {
            let largest = head.max(capacity.largest).max(capacity.unmet);
            self.equal_share().max(capacity.share.units_for(largest))
        };
        let capacity = self.capacity.as_ref();
        capacity.is_some_and(|capacity| is_idle(capacity) || self.units.held > keeps(capacity))
    }

    fn equal_share(&self) -> u64 {
        UNITS / self.usage.map_or(1, |(usage, _)| usage.sessions.max(1))
    }

    /// Gives back what others may have, and asks for what the demand takes.
    pub(super) fn balance(&mut self, now: Instant) {
        let (micros, equal) = (self.micros(now), self.equal_share());
        let head = self.queue.first_key_value().map(|(&key, head)| (key, head.need));
        let Some(capacity) = &mut self.capacity else { return };
        if capacity.next_span <= now {
            capacity.spent = (0, capacity.spent.0);
            if capacity.spent.1 == 0 {
                (capacity.largest, capacity.unmet) = (0, 0);
            }
            capacity.next_span = self.clock.after(now, self.config.renewal);
        }
        if head.is_none() && capacity.others_wait.is_some() && capacity.share.units_for(capacity.unmet) > equal {
            // Without a waiter there is no turn.
            capacity.unmet = 0;
        }
        let ask = head.map_or(capacity.unmet, |(_, need)| need);
        let need = if ask > 0 { capacity.share.units_for(ask) } else { 0 };
        let (in_debt, others_wait) = (capacity.share.in_debt(micros), capacity.others_wait.is_some());
        if let Some(since) = capacity.others_wait.filter(|_| !in_debt) {
            let served = head.is_none_or(|(key, _)| capacity.turn != Some(key));
            let turn = self.config.ttl.mul_f64((equal as f64 / need.max(1) as f64).min(1.0));
            let late = served && self.clock.after(since, turn) <= now;
            if late {
                capacity.others_wait = Some(now);
            }
            let keep = match ask {
                _ if late => 0,
                0 => {
                    let spent = capacity.spent.0.max(capacity.spent.1);
                    let span = u64::try_from(self.config.renewal.as_micros()).unwrap_or(u64::MAX);
                    let takes = capacity.share.units_to_gain(spent.saturating_add(spent / 4), span);
                    let least = if spent > 0 {
                        capacity.share.units_for(capacity.largest)
                    } else {
                        0
                    };
                    takes.min(equal).max(least)
                }
                _ => equal.max(need),
            };
            if self.units.held > keep {
                self.counters.recalls += 1;
                self.give(self.units.held - keep, now);
            }
        }
        let pending = self.requests.iter().find(|(_, pending)| pending.owner.is_none());
        let pending = pending.map(|(&id, pending)| (id, *pending));
        let gathers = need > self.units.held;
        if let Some((id, pending)) = pending {
            let is_fit = if gathers {
                pending.need == need
            } else {
                pending.need == 1
            };
            if ask > 0 && is_fit {
                return;
            }
            self.withdraw(id);
        }
        if ask == 0 || gathers && in_debt && self.units.held > 0 {
            return;
        }
        if gathers {
            self.give(self.units.held, now);
            self.new_request(need, need.max(equal), true, None);
        } else if self.fetch_at.is_none_or(|at| at <= now) && self.knows_usage(now) {
            let usage = self.usage.map(|(usage, _)| usage).unwrap_or_default();
            let free = usage.limit.saturating_sub(usage.in_use);
            let short = equal.saturating_sub(self.units.held);
            let lacks = short > equal / 10;
            // Free units are for waiters, and for processes that lack a part of their share: they ask within a renewal.
            let is_spare = free > 0 && !others_wait && short <= equal / 64;
            let capacity = self.capacity.as_mut();
            let was_free = capacity.is_some_and(|capacity| std::mem::replace(&mut capacity.was_free, is_spare));
            let want = match is_spare {
                true if was_free => free,
                true => 0,
                false if lacks || free > 0 && !others_wait => short,
                false => 0,
            };
            if want > 0 {
                // A place in the queue recalls units from others.
                self.new_request(1, want, lacks && free < want, None);
            }
            // Once for each renewal.
            self.fetch_at = Some(self.clock.after(now, self.config.renewal / 2));
        }
    }

    /// Whether the usage at the store is recent. Otherwise a renewal is due, and its reply has it.
    fn knows_usage(&self, now: Instant) -> bool {
        let recent = |at| self.clock.after(at, self.config.renewal / 2) > now;
        self.live.is_none() || self.usage.is_none_or(|(_, at)| recent(at))
    }

    /// Returns units to the store: from now on they gain nothing here.
    fn give(&mut self, units: u64, now: Instant) {
        let micros = self.micros(now);
        if let Some(capacity) = self.capacity.as_mut().filter(|_| self.live.is_some()) {
            capacity.share.give(units, micros);
            self.return_units(units);
        }
    }
}
