//! What a process knows and holds of a key, as a pure state machine: no I/O, no clock, no waking. Its callers lock it, pass it
//! the instant, and wake whom it names after they have unlocked it.
//!
//! Here is the state, whose parts are in [`parts`]; [`view`] has what can be seen of it. [`take`] has what is taken and given back on
//! the spot, by a [`ticket`], [`back`] how much of that may come back, [`line`] those who wait, [`wish`] what is asked for, [`talk`]
//! what is said to the store, [`hear`] what is heard of it, [`change`] how the rule is changed for everybody, [`lapse`] what time
//! does, [`copy`] what a fork does.

mod back;
mod change;
mod copy;
mod hear;
mod lapse;
mod line;
mod lows;
mod parts;
mod take;
mod talk;
mod ticket;
mod view;
mod wish;

use super::backend::{Census, Session, StoreError};
use super::book::Meter;
use super::plan::{Away, Plan};
use crate::time::{Clock, Instant};
use change::Change;
use lows::Lows;
pub(super) use parts::{End, Kind, Tally};
use parts::{Ended, Live, Waiter, Wished};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;
pub(super) use talk::Todo;
pub use ticket::RemoteTicket;
use ticket::{SHARED, UNCOUNTED};

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
    /// Sessions that have ended, and of which the store knows it, or is not told: nobody asks for news of them.
    parted: Vec<Session>,

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
    /// The process that made it; whether this is a copy in another one, and until when that is taken for known.
    process: u32,
    is_copy: bool,
    known_until: Instant,

    census: Option<(Census, Instant)>,
    /// Another session goes by another rule.
    differs: bool,
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
            parted: Vec::new(),
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
            process: std::process::id(),
            is_copy: false,
            known_until: now,
            census: None,
            differs: false,
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

    /// Of which sessions nobody asks for news any more, since this was last asked.
    pub(super) fn take_parted(&mut self) -> Vec<Session> {
        std::mem::take(&mut self.parted)
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
}
