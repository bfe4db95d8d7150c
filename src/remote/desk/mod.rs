//! What a process knows and holds of a key, as a pure state machine: no I/O, no clock, no waking. Its callers lock it, pass it
//! the instant, and wake whom it names after they have unlocked it.
//!
//! Here is the state, and what can be seen of it. [`take`] has what is taken and given back on the spot, [`back`] how much of that
//! may come back, [`line`] those who wait, [`wish`] what is asked for, [`talk`] what is said to the store and heard of it, [`change`]
//! how the rule is changed for everybody, [`lapse`] what time does.

mod back;
mod change;
mod lapse;
mod line;
mod lows;
mod take;
mod talk;
mod wish;

use super::backend::{Census, Rule, Session, StoreError};
use super::book::Meter;
use super::fence::Fence;
use super::plan::{Away, Plan};
use crate::refusal::Reason;
use crate::ticket::Ticket;
use crate::time::{Clock, Instant};
use change::Change;
use lows::Lows;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;
pub(super) use talk::Todo;

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

/// The session at the store.
#[derive(Debug)]
struct Live {
    id: Session,
    seq: u64,
    /// The last step that was answered; zero before.
    heard: u64,
    /// When what it holds is lost, unless it is renewed before.
    deadline: Option<Instant>,
    renew_at: Instant,
    returned: u64,
    returned_told: u64,
    charged: u64,
    charged_told: u64,
    /// The token of the last grant.
    seen: u64,
}

/// A wish that is with the store, or on its way.
#[derive(Clone, Copy, Debug)]
struct Wished {
    need: u64,
    want: u64,
    queue: bool,
    /// The store has answered it.
    told: bool,
    /// How often it has been said.
    said: u32,
    /// Who alone is to get what it gives.
    owner: Option<u64>,
}

/// Somebody who waits.
#[derive(Debug)]
struct Waiter {
    need: u64,
    kind: Kind,
    waker: Option<Waker>,
    wish: Option<u64>,
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// For its turn.
    Turn,
    /// The same, on behalf of a policy: its waker is called once.
    Claim,
    /// For the store's answer, whatever it is.
    Answer,
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
    kind: Kind,
}

/// How often things have happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) failures: u64,
    pub(super) granted: u64,
    pub(super) losses: u64,
    pub(super) expired: u64,
    pub(super) uncounted: u64,
}

#[derive(Debug)]
pub(super) struct Desk {
    plan: Plan,
    clock: Clock,
    live: Option<Live>,
    /// The number of the session, or of the one to come.
    term: u64,
    sessions: u64,
    /// Sessions that have ended here, and of which the store has to be told: with a number for the step, and how often that
    /// was tried.
    farewells: VecDeque<(Session, u64, u32)>,

    /// Permits: how many the session holds, and how many of them are in use.
    held: u64,
    in_use: u64,
    /// Tokens at hand, with the instants at which they are dropped.
    credit: VecDeque<(Instant, u64)>,
    credit_total: u64,
    /// Tokens that may be used from an instant on.
    coming: VecDeque<(Instant, u64)>,
    /// How many the store's bucket was short of, at least, and since when it fills again.
    short: (u64, Instant),
    /// How many were missing, here and there, since each was taken.
    lows: Lows,
    /// Tokens that were used and not taken yet, as far as the store does not know.
    debt: u64,
    token: u64,
    order: u64,
    /// How many units are in use, by the tokens of their permits: none of them zero, but that of the last grant; and below which token nobody holds any.
    abroad: BTreeMap<u64, u64>,
    floor: u64,

    /// Those who wait for what comes to this process, in order.
    line: BTreeMap<u64, Waiter>,
    /// Those for each of whom the store is asked by name.
    bound: BTreeMap<u64, Waiter>,
    ended: BTreeMap<u64, Ended>,
    next_key: u64,

    wishes: BTreeMap<u64, Wished>,
    withdrawn: BTreeSet<u64>,
    next_wish: u64,
    /// The wish for which we have a place in the line of a window at the store.
    placed: Option<u64>,
    /// A rate has nothing to give before this.
    ask_at: Option<Instant>,
    /// Nothing is fetched ahead before this.
    fetch_at: Option<Instant>,
    /// When the store is to be looked at again.
    look_at: Option<Instant>,

    /// Others wait, and what comes free here goes to them from this instant on.
    recall: Option<Instant>,
    /// The least that was free since the last look, and when the next is.
    least_free: u64,
    idle_at: Option<Instant>,
    /// How many tokens the demand takes in a span, when last measured.
    block: u64,
    /// How many were spent since a block was last taken, and when that was.
    spent: u64,
    fetched_at: Instant,

    last_error: Option<StoreError>,
    failing_since: Option<Instant>,
    retry_at: Option<Instant>,
    /// The store has been declared away.
    away: bool,
    share: Meter,
    share_in_use: u64,
    share_at: Option<Instant>,

    /// Which edition of the rule we go by, and what it is to be changed to, with the number of the change.
    edition: u64,
    change: Option<Change>,
    /// The number of the last change that was asked for, and of the last that the store has carried out.
    changes: (u64, u64),
    closed: bool,
    gone: bool,

    census: Option<(Census, Instant)>,
    pub(super) tally: Tally,

    watchers: BTreeMap<u64, Waker>,
    next_watcher: u64,
    /// The driver has something to do, or waits to be told that it has.
    poked: bool,
    driver: Option<Waker>,
    /// Whom to wake once the lock is free.
    wakers: Vec<Waker>,
}

impl Desk {
    pub(super) fn new(plan: Plan, clock: &Clock) -> Self {
        let now = clock.now();
        Self {
            share: Meter::new(&plan.rule, 0),
            plan,
            clock: clock.clone(),
            live: None,
            term: 1,
            sessions: 0,
            farewells: VecDeque::new(),
            held: 0,
            in_use: 0,
            credit: VecDeque::new(),
            credit_total: 0,
            coming: VecDeque::new(),
            short: (0, now),
            lows: Lows::new(),
            block: 0,
            debt: 0,
            token: 0,
            order: 0,
            abroad: BTreeMap::new(),
            floor: 0,
            line: BTreeMap::new(),
            bound: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_key: 1,
            wishes: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            next_wish: 1,
            placed: None,
            ask_at: None,
            fetch_at: None,
            look_at: None,
            recall: None,
            least_free: 0,
            idle_at: None,
            spent: 0,
            fetched_at: now,
            last_error: None,
            failing_since: None,
            retry_at: None,
            away: false,
            share_in_use: 0,
            share_at: None,
            edition: 0,
            change: None,
            changes: (0, 0),
            closed: false,
            gone: false,
            census: None,
            tally: Tally::default(),
            watchers: BTreeMap::new(),
            next_watcher: 0,
            poked: true,
            driver: None,
            wakers: Vec::new(),
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// The driver has something to do.
    fn poke(&mut self) {
        self.poked = true;
        self.wakers.extend(self.driver.take());
    }

    /// True when the driver was poked since it last asked; otherwise `waker` will be woken. Also returns a waker to be dropped.
    pub(super) fn was_poked(&mut self, waker: Waker) -> (bool, Option<Waker>) {
        if std::mem::take(&mut self.poked) {
            return (true, Some(waker));
        }
        (false, self.driver.replace(waker))
    }

    /// Whether what is held is still ours at `now`. The driver may be late to notice that it is not.
    pub(super) fn is_valid(&self, now: Instant) -> bool {
        let deadline = self.live.as_ref().and_then(|live| live.deadline);
        deadline.is_some_and(|deadline| now < deadline)
    }

    /// Units that could be given on the spot, once what is stale has been dropped.
    pub(super) fn free(&self, now: Instant) -> u64 {
        if self.plan.spends() {
            return self.credit_total;
        }
        if self.is_valid(now) { self.held - self.in_use } else { 0 }
    }

    /// True when the limit forbids `n` for good, or until it is raised, as the store has said of late. What it said before may
    /// have changed since: who asks is told.
    pub(super) fn is_oversized(&self, n: u64, now: Instant) -> bool {
        let late = |at| self.clock.after(at, self.plan.renewal) <= now && !seeded!("remote_believes_for_ever");
        let known = self.census.filter(|(_, at)| !late(*at));
        n > known.map_or(super::MAX_UNITS, |(census, _)| census.limit) && !self.away
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_away(&self) -> bool {
        self.away
    }

    /// True while the store is away and nobody is admitted for that.
    pub(super) fn refuses_while_away(&self) -> bool {
        self.away && self.plan.away == Away::Reject
    }

    /// True when `n` would be admitted, `n` being more than zero for whoever does not come first.
    pub(super) fn has_free(&mut self, n: u64, now: Instant) -> bool {
        n == 0 || self.waiting() == 0 && (n <= self.free(now) || self.away && self.plan.away == Away::Admit)
    }

    /// When `n` tokens will be at hand out of those that are and those that are granted for later, unless somebody else takes
    /// them; none when that is not enough, or others come first.
    pub(super) fn comes_at(&self, n: u64) -> Option<Instant> {
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
    pub(super) fn is_lost(&self, ticket: &RemoteTicket, now: Instant) -> bool {
        self.counts(ticket) && (ticket.term != self.term || !self.is_valid(now))
    }

    /// When what `ticket` was given is lost, unless it is renewed.
    pub(super) fn runs_out(&self, ticket: &RemoteTicket) -> Option<Instant> {
        self.deadline().filter(|_| self.counts(ticket))
    }

    pub(super) fn has_fence(&self, ticket: &RemoteTicket) -> bool {
        !self.plan.spends() && ticket.term != UNCOUNTED && ticket.term != SHARED
    }

    fn counts(&self, ticket: &RemoteTicket) -> bool {
        self.has_fence(ticket) && ticket.units > 0
    }

    /// As it was set up, or as the store has it where somebody has changed it.
    pub(super) fn rule(&self) -> Rule {
        match (self.plan.rule, self.census) {
            (Rule::Permits { .. }, Some((Census { limit, .. }, _))) => Rule::Permits { limit },
            (rule, _) => rule,
        }
    }

    /// The limit, as far as it is known here.
    pub(super) fn limit(&self) -> u64 {
        let set = match self.plan.rule {
            Rule::Permits { limit } | Rule::Window { limit, .. } => limit,
            Rule::Rate { quota } => quota.burst_size(),
        };
        self.census.map_or(set, |(census, _)| census.limit)
    }

    /// Wakes whoever watches for something other than units.
    fn tell_watchers(&mut self) {
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

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.live.as_ref().and_then(|live| live.deadline)
    }

    pub(super) fn census(&self) -> Option<(Census, Instant)> {
        self.census
    }

    pub(super) fn waiting(&self) -> u64 {
        (self.line.len() + self.bound.len()) as u64
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
        let used = self.abroad.keys().next().copied();
        (self.held > 0).then(|| used.unwrap_or(self.token))
    }

    /// Why the last step failed, if it did.
    pub(super) fn last_error(&self) -> Option<&StoreError> {
        self.last_error.as_ref()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }
}
