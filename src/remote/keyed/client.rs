//! The state of a limiter of many keys in this process, as a pure state machine: what is to be asked at each key, what is under
//! way, and what the store has refused until when.
//!
//! A key is listed while something is to be sent, is under way, or is refused for some time. At most one step of a key is under
//! way, and everything that comes up meanwhile goes into the next one.
//!
//! Invariant: a key with something to send has a step under way, or stands in `ready` once. A wait that was given up is in no
//! table, and what it is granted later goes back.

mod places;

use super::held::Held;
use super::legs::Legs;
use super::reserved::{Charge, Reservations};
use super::stats::RemoteKeyedStats;
use crate::core::refusal::Reason;
use crate::remote::backend::StoreError;
use crate::remote::config::OnUnavailable;
use crate::remote::key::Key;
use crate::remote::step::{Correction, KeyLease, KeyLeg, LegUnits, LegUsage, Reserved, Step, StepReply};
use crate::time::{Clock, Instant};
use futures::future::AbortHandle;
use places::{Heads, PlaceAsk};
pub(super) use places::{Looked, PlaceId};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// The most admissions and corrections in one step.
const BATCH: usize = 64;
/// The most steps under way, beside those that have failed.
pub(super) const MOST: usize = 256;

/// The settings, fixed while it runs.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) client: u64,
    pub(super) max_keys: usize,
    pub(super) ttl: Duration,
    pub(super) timeout: Duration,
    pub(super) retry: Duration,
    pub(super) on_unavailable: OnUnavailable,
    pub(super) unavailable_after: Duration,
    /// What admissions take of windows is reserved first, and used as it is spent.
    pub(super) reserves: bool,
}

impl Config {
    /// How long a store remembers the reply to a step.
    fn remember(&self) -> Duration {
        ((self.timeout + self.retry) * 20).max(self.unavailable_after * 4)
    }

    /// How long a step is repeated: no longer than any store is sure to remember it, and longer than its waits last.
    fn patience(&self) -> Duration {
        self.remember() / 2
    }
}

/// What ended a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The store has taken the units at the instant `at` of its clock, and permits under the lease with this number.
    Granted { at: u64, lease: u64 },
    /// It has not: the leg admits then, or never.
    Refused(usize, Option<Instant>),
    /// The permits of this leg are in use, or others wait for them.
    Saturated(usize),
    /// The store was not asked: it cannot be reached, or the limiter is closed or has no room for the key.
    Failed(Reason),
    /// The store cannot be reached, and the admission is not counted.
    Uncounted,
    /// The usage of each leg, after a grant.
    Usage(Arc<[LegUsage]>),
}

#[derive(Debug)]
struct Wait {
    key: Key,
    legs: Arc<Legs>,
    units: LegUnits,
    /// Its end is no admission: it waits for the usage of the key.
    looks: bool,
    end: Option<End>,
    waker: Option<Waker>,
    /// Woken once when the store says until when it keeps the wait waiting.
    news: Option<Waker>,
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "items wait for a round trip at most, and a correction costs no allocation"
)]
enum Item {
    Take(u64),
    Grant(u64),
    Correct(Arc<Legs>, Correction),
}

impl Item {
    /// Its legs, unless it was given up.
    fn legs<'a>(&'a self, waits: &'a HashMap<u64, Wait>) -> Option<&'a Arc<Legs>> {
        match self {
            Self::Take(number) | Self::Grant(number) => waits.get(number).map(|wait| &wait.legs),
            Self::Correct(legs, _) => Some(legs),
        }
    }
}

/// A step that is under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) legs: Arc<Legs>,
    /// Those, and permit legs of other names of which some are held.
    pub(super) counted: Arc<[KeyLeg]>,
    pub(super) step: Step,
    /// The waits of its admissions, and of its grants.
    waits: Vec<u64>,
    grants: Vec<u64>,
    since: Instant,
    /// The corrections to less that its key has had.
    returns: u64,
    /// It reports all changes of reservations.
    is_whole: bool,
}

/// How a step that is under way has fared so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fared {
    /// No attempt has ended.
    Unanswered,
    /// The last attempt had no answer, or one that decides nothing.
    Failed,
    /// The store has refused the last attempt for good.
    Refused,
}

#[derive(Debug, Default)]
struct KeyState {
    outbox: VecDeque<Item>,
    /// Since when a step is under way, and how it has fared.
    under_way: Option<(Instant, Fared)>,
    is_ready: bool,
    refused: Option<RefusedUntil>,
    /// What the store last said to a waiter for permits.
    told: Option<Told>,
    /// Corrections to less: a refusal from before one does not hold.
    returns: u64,
    /// The permits of the key.
    held: Option<Box<Held>>,
    reserved: Reservations,
    /// The last step was begun for reservations, before others.
    reserved_went_first: bool,
    /// When the driver looks at the key.
    timer: Option<Instant>,
}

/// A refusal that holds for some time: the units of that leg are not there before.
#[derive(Debug)]
struct RefusedUntil {
    legs: Arc<Legs>,
    leg: usize,
    units: u64,
    until: Instant,
    /// When the store is asked again all the same: an operator, or another process, may have given units back.
    doubted_at: Instant,
    /// Heads of policies that wait for its end, woken when units come back before that.
    heads: Heads,
}

/// Why the store kept a waiter for permits waiting. Other asks may be admitted all the same.
#[derive(Debug)]
struct Told {
    legs: Arc<Legs>,
    leg: usize,
    until: Instant,
    /// When this is too old to be told to others.
    doubted_at: Instant,
}

#[derive(Debug)]
pub(super) struct Client {
    config: Config,
    clock: Clock,
    keys: HashMap<Key, KeyState>,
    ready: VecDeque<Key>,
    waits: HashMap<u64, Wait>,
    last_wait: u64,
    last_seq: u64,
    last_lease: u64,
    /// When keys with permits are looked at.
    timers: BTreeSet<(Instant, Key)>,
    /// Keys whose notifications are to be awaited, and waits for notifications that are to end.
    listens: Vec<Key>,
    aborts: Vec<AbortHandle>,
    /// Keys at which there are no more notifications for a place.
    leaves: Vec<Key>,
    /// Steps that are under way, and those of them that have failed or were refused.
    flights: usize,
    failing: usize,
    /// Since when no step of any key was answered, while some are under way: with none, the next ask finds out.
    silent_since: Option<Instant>,
    /// While the store seems to be away: the key whose step finds out, and until when no other key's does.
    probe: Option<(Key, Instant)>,
    last_error: Option<StoreError>,
    is_closed: bool,
    /// The driver has ended.
    is_stopped: bool,
    /// Wait for that.
    closers: Vec<Waker>,
    /// A forked process has the memory of its parent, and must not send its steps.
    process: u32,
    driver: Option<Waker>,
    /// The heads of policies.
    places: BTreeMap<PlaceId, PlaceAsk>,
    /// To be woken and dropped once the client is unlocked.
    wakers: Vec<Waker>,
    stale: Vec<Waker>,
    /// The counts of events; the other numbers are zero.
    pub(super) counters: RemoteKeyedStats,
}

impl Client {
    pub(super) fn new(config: Config, clock: &Clock) -> Self {
        Self {
            config,
            clock: clock.clone(),
            keys: HashMap::new(),
            ready: VecDeque::new(),
            waits: HashMap::new(),
            last_wait: 0,
            last_seq: 0,
            last_lease: 0,
            timers: BTreeSet::new(),
            listens: Vec::new(),
            aborts: Vec::new(),
            leaves: Vec::new(),
            flights: 0,
            failing: 0,
            silent_since: None,
            probe: None,
            last_error: None,
            is_closed: false,
            is_stopped: false,
            closers: Vec::new(),
            process: std::process::id(),
            driver: None,
            places: BTreeMap::new(),
            wakers: Vec::new(),
            stale: Vec::new(),
            counters: RemoteKeyedStats::default(),
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Wakers that are to be dropped.
    pub(super) fn take_stale(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.stale)
    }

    pub(super) fn take_wakers(&mut self) -> (Vec<Waker>, Vec<AbortHandle>) {
        (std::mem::take(&mut self.wakers), std::mem::take(&mut self.aborts))
    }

    /// The keys that are listed.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The keys with permits, and the permits.
    pub(super) fn permits(&self) -> (usize, u64) {
        let held = self.keys.values().filter_map(|state| state.held.as_ref());
        let held = held.map(|held| held.permits()).filter(|&permits| permits > 0);
        held.fold((0, 0), |(keys, all), permits| (keys + 1, all + permits))
    }

    pub(super) fn waiting(&self) -> usize {
        self.waits.values().filter(|wait| wait.end.is_none()).count()
    }

    /// The steps that have failed or were refused, and are to be repeated.
    pub(super) fn failing(&self) -> usize {
        self.failing
    }

    /// Why the last step failed, unless one was answered since.
    pub(super) fn last_error(&self) -> Option<&StoreError> {
        self.last_error.as_ref()
    }

    fn is_long_ago(&self, since: Instant, now: Instant) -> bool {
        self.clock.after(since, self.config.unavailable_after) <= now
    }

    /// True when no step was answered for long.
    pub(super) fn is_silent_for_long(&self, now: Instant) -> bool {
        self.silent_since.is_some_and(|since| self.is_long_ago(since, now))
    }

    /// True when the store seems to be away: it was silent for long, and not for one key alone, whose row may be locked, or whose server of
    /// a cluster may be dead.
    fn seems_away(&self, now: Instant) -> bool {
        self.is_silent_for_long(now) && self.failing > 1
    }

    /// True when the step of `key` has failed for long, or the store seems to be away and the step of another key finds out whether it is.
    fn is_unavailable(&self, key: &Key, now: Instant) -> bool {
        match self.keys.get(key).and_then(|state| state.under_way) {
            Some((_, Fared::Unanswered | Fared::Refused)) => false,
            Some((since, Fared::Failed)) => self.is_long_ago(since, now) || self.seems_away(now),
            None => {
                let by_another = |(probe, until): &(Key, Instant)| probe != key && now < *until;
                self.seems_away(now) && self.probe.as_ref().is_some_and(by_another)
            }
        }
    }

    /// True when waits of `key` end for that. Waiters with a place at the store stay: the next renewal finds out for itself.
    fn ends_waits(&self, key: &Key, now: Instant) -> bool {
        let Some(state) = self.keys.get(key) else { return false };
        match state.under_way {
            Some(_) => self.is_unavailable(key, now),
            // There is no room for its step, since others fail.
            None => {
                let waits = state.is_ready && self.flights >= MOST && self.seems_away(now);
                waits && self.probe.as_ref().is_none_or(|(probe, _)| probe != key)
            }
        }
    }

    /// True when the store has refused the step of `key` that is under way.
    fn is_refused(&self, key: &Key) -> bool {
        let own = self.keys.get(key).and_then(|state| state.under_way);
        own.is_some_and(|(_, fared)| fared == Fared::Refused)
    }

    /// The leg that refuses `units` of `key` until an instant, as the store has reported.
    pub(super) fn refused(
        &self,
        key: &Key,
        legs: &Arc<Legs>,
        units: &LegUnits,
        now: Instant,
    ) -> Option<(usize, Instant)> {
        let refused = self.keys.get(key)?.refused.as_ref()?;
        if !refused.legs.is(legs) || now >= refused.doubted_at {
            return None;
        }
        let more = units[refused.leg].checked_sub(refused.units)?;
        let more = legs.time_of(refused.leg, more)?;
        Some((refused.leg, self.clock.after(refused.until, more)))
    }

    /// The leg of `key` for which the store keeps a waiter for permits waiting, as far as that is recent, and until when: for permits the
    /// end of a lease, which may be renewed.
    pub(super) fn told(&self, key: &Key, legs: &Arc<Legs>, now: Instant) -> Option<(usize, Instant)> {
        let told = self.keys.get(key)?.told.as_ref()?;
        let is_recent = now < told.doubted_at && (now < told.until || legs.is_permits(told.leg));
        (told.legs.is(legs) && is_recent).then_some((told.leg, told.until))
    }

    /// A number for a wait.
    pub(super) fn next_wait(&mut self) -> u64 {
        self.last_wait += 1;
        self.last_wait
    }

    /// Begins a wait for the store's answer, or with `queued` for permits, in turn. It may have ended already.
    #[allow(clippy::too_many_arguments, reason = "they are what a wait is")]
    pub(super) fn join(
        &mut self,
        number: u64,
        queued: bool,
        key: &Key,
        legs: &Arc<Legs>,
        units: LegUnits,
        waker: Waker,
        now: Instant,
    ) {
        let leg = (0..legs.counted.len()).find(|&leg| legs.is_permits(leg) && units[leg] > 0);
        let queue = self.keys.get(key).and_then(|state| state.held.as_ref());
        let others_wait = queue.is_some_and(|held| !held.queue.is_empty());
        // It overtakes no waiter.
        let end = leg.filter(|_| others_wait && !queued).map(End::Saturated);
        self.enter(number, key, legs, (units, false), end, waker, now);
        if !self.is_waiting(number) {
            return;
        }
        self.make_room(key);
        if leg.is_none() || !queued {
            return self.send(key, Item::Take(number));
        }
        let held = self.held(key, legs);
        let at = held.queue.partition_point(|&other| other < number);
        held.queue.insert(at, number);
        if !held.is_refused || at == 0 {
            held.is_due = true;
            self.ready(key);
        }
    }

    /// Wakes `waker` once when the store says until when it keeps this wait waiting.
    pub(super) fn on_news(&mut self, number: u64, waker: Waker) {
        match self.waits.get_mut(&number) {
            Some(wait) if wait.end.is_none() => wait.news = Some(waker),
            _ => self.stale.push(waker),
        }
    }

    /// Notes a wait, which ends at once if the store is not to be asked, or with `end`.
    #[allow(clippy::too_many_arguments, reason = "they are what a wait is")]
    fn enter(
        &mut self,
        number: u64,
        key: &Key,
        legs: &Arc<Legs>,
        (units, looks): (LegUnits, bool),
        end: Option<End>,
        waker: Waker,
        now: Instant,
    ) {
        if std::process::id() != self.process && !self.is_closed {
            // The permits are the parent's.
            (self.keys, self.ready, self.timers) = Default::default();
            self.close();
        }
        let end = match self.refuses(key, now) {
            Some(reason) => Some(End::Failed(reason)),
            None if self.is_unavailable(key, now) => Some(End::Uncounted),
            None => end,
        };
        let wait = Wait {
            key: key.clone(),
            legs: Arc::clone(legs),
            units,
            looks,
            end: None,
            waker: Some(waker),
            news: None,
        };
        self.waits.insert(number, wait);
        if let Some(end) = end {
            self.end(number, end);
        } else if self.seems_away(now) && self.keys.get(key).is_none_or(|state| state.under_way.is_none()) {
            let Config { timeout, retry, .. } = self.config;
            self.probe = Some((key.clone(), self.clock.after(now, timeout + retry)));
        }
    }

    /// What is held of the permits of `key`.
    fn held(&mut self, key: &Key, legs: &Arc<Legs>) -> &mut Held {
        let state = self.keys.entry(key.clone()).or_default();
        let last = &mut self.last_lease;
        state.held.get_or_insert_with(|| {
            *last += 1;
            Box::new(Held::new(legs, *last))
        })
    }

    /// Why asks for `key` are refused at once, if they are.
    pub(super) fn refuses(&self, key: &Key, now: Instant) -> Option<Reason> {
        if self.is_closed {
            return Some(Reason::Closed);
        }
        if self.is_refused(key) {
            return Some(Reason::Misconfigured);
        }
        if self.is_unavailable(key, now) {
            return match self.unavailable() {
                End::Failed(reason) => Some(reason),
                _ => None,
            };
        }
        let full = self.keys.len() >= self.config.max_keys && !self.keys.contains_key(key);
        (full && self.keys.values().all(KeyState::is_busy)).then_some(Reason::QueueFull)
    }

    fn unavailable(&self) -> End {
        match self.config.on_unavailable {
            OnUnavailable::Admit => End::Uncounted,
            _ => End::Failed(Reason::Unavailable),
        }
    }

    /// A key of which only a refusal is remembered makes room: it costs a step to hear it again.
    fn make_room(&mut self, key: &Key) {
        if self.keys.len() < self.config.max_keys || self.keys.contains_key(key) {
            return;
        }
        let mut idle = self.keys.iter().filter(|(_, state)| !state.is_busy());
        if let Some(idle) = idle.next().map(|(key, _)| key.clone()) {
            self.keys.remove(&idle);
        }
    }

    fn send(&mut self, key: &Key, item: Item) {
        self.keys.entry(key.clone()).or_default().outbox.push_back(item);
        self.ready(key);
    }

    /// Lets the driver look at `key`, unless it will.
    fn ready(&mut self, key: &Key) {
        let Some(state) = self.keys.get_mut(key) else { return };
        if state.under_way.is_none() && !state.is_ready {
            state.is_ready = true;
            self.ready.push_back(key.clone());
            self.wakers.extend(self.driver.take());
        }
    }

    /// How a wait has ended, which is over then; otherwise `waker` replaces its own, which is returned.
    pub(super) fn poll(&mut self, number: u64, waker: Option<Waker>) -> (Option<End>, Option<Waker>) {
        let Some(wait) = self.waits.get_mut(&number) else {
            return (Some(End::Failed(Reason::Closed)), waker);
        };
        match wait.end.take() {
            Some(end) => {
                let wait = self.waits.remove(&number);
                if let (End::Granted { at, lease: lease @ 1.. }, Some(wait)) = (&end, wait) {
                    if self.is_lost(&wait.key, *lease, self.clock.now()) {
                        // Lost before it was handed out.
                        self.give_back(&wait.key, &wait.legs, *at, *lease, &wait.units);
                        return (Some(End::Failed(Reason::Unavailable)), waker);
                    }
                }
                (Some(end), waker)
            }
            None if waker.is_some() => (None, std::mem::replace(&mut wait.waker, waker)),
            None => (None, None),
        }
    }

    /// True while the store has not answered.
    pub(super) fn is_waiting(&self, number: u64) -> bool {
        self.waits.get(&number).is_some_and(|wait| wait.end.is_none())
    }

    /// Gives a wait up. What it was granted goes back. Returns its wakers, to be dropped.
    pub(super) fn leave(&mut self, number: u64) -> [Option<Waker>; 2] {
        let Some(wait) = self.waits.remove(&number) else {
            return [None, None];
        };
        if let Some(End::Granted { at, lease }) = wait.end {
            self.give_back(&wait.key, &wait.legs, at, lease, &wait.units);
        } else if wait.end.is_none() {
            self.leave_queue(&wait.key, number);
        }
        [wait.waker, wait.news]
    }

    /// Removes a waiter from the queue of a key.
    fn leave_queue(&mut self, key: &Key, number: u64) {
        let held = self.keys.get_mut(key).and_then(|state| state.held.as_mut());
        let Some(held) = held else { return };
        if held.leave(number) {
            // The place goes, or to the next one.
            held.is_due = true;
            self.ready(key);
        }
    }

    /// Gives back all that was taken at `at`.
    pub(super) fn give_back(&mut self, key: &Key, legs: &Arc<Legs>, at: u64, lease: u64, units: &LegUnits) {
        self.recharge(key, legs, at, &Charge::new(legs, units), &Charge::default(), true);
        self.give_permits(key, legs, lease, units);
    }

    /// A charge of the instant `at` has changed. An urgent change is told to the store at once, if it is one for the store.
    pub(super) fn recharge(
        &mut self,
        key: &Key,
        legs: &Arc<Legs>,
        at: u64,
        before: &Charge,
        after: &Charge,
        is_urgent: bool,
    ) {
        let (mut charged, mut actual) = (before.units, after.units);
        let reserves = self.config.reserves && legs.has_windows();
        if reserves {
            let state = self.keys.entry(key.clone()).or_default();
            let returned = state.reserved.change(at, legs, before, after, is_urgent);
            for leg in (0..returned.len()).filter(|&leg| legs.is_window(leg)) {
                (charged[leg], actual[leg]) = (returned[leg], 0);
            }
        }
        // Behind what it corrects: a step carries out the changes of reservations first.
        self.correct(key, legs, Correction { at, charged, actual });
        if reserves && is_urgent {
            self.ready(key);
            let mut windows = (0..before.units.len()).filter(|&leg| legs.is_window(leg));
            if windows.any(|leg| after.units[leg] < before.units[leg]) {
                self.on_returns(key);
            }
        }
    }

    /// Gives back the permits that were taken under this lease.
    pub(super) fn give_permits(&mut self, key: &Key, legs: &Legs, lease: u64, units: &LegUnits) {
        let held = self.keys.get_mut(key).and_then(|state| state.held.as_mut());
        let held = held.filter(|_| legs.has_permits());
        if held.is_some_and(|held| held.give(legs, units, lease)) {
            self.ready(key);
        }
    }

    /// Whether the permits that were taken under this lease may have another holder by now.
    pub(super) fn is_lost(&self, key: &Key, lease: u64, now: Instant) -> bool {
        let held = self.keys.get(key).and_then(|state| state.held.as_ref());
        held.is_none_or(|held| held.is_lost(lease, now))
    }

    /// Wakes `waker` when the permits of this lease are lost, before their deadline too. Returns that, and the waker before, unless they are
    /// lost.
    pub(super) fn watch(
        &mut self,
        key: &Key,
        lease: u64,
        number: &mut Option<u64>,
        waker: Waker,
        now: Instant,
    ) -> (Option<Instant>, Option<Waker>) {
        if self.is_lost(key, lease, now) {
            return (None, Some(waker));
        }
        let number = *number.get_or_insert_with(|| {
            self.last_wait += 1;
            self.last_wait
        });
        let held = self.keys.get_mut(key).and_then(|state| state.held.as_mut());
        held.map_or((None, None), |held| {
            (held.deadline(), held.watchers.insert(number, waker))
        })
    }

    /// Ends a watch.
    pub(super) fn unwatch(&mut self, key: &Key, number: u64) -> Option<Waker> {
        let held = self.keys.get_mut(key).and_then(|state| state.held.as_mut());
        held.and_then(|held| held.watchers.remove(&number))
    }

    /// When they are lost unless the lease is renewed.
    pub(super) fn deadline(&self, key: &Key) -> Option<Instant> {
        self.keys.get(key)?.held.as_ref()?.deadline()
    }

    /// Hands a correction to the store. What it has refused before may be there then.
    pub(super) fn correct(&mut self, key: &Key, legs: &Arc<Legs>, correction: Correction) {
        let units = correction.charged.iter().zip(&correction.actual).enumerate();
        let mut changed = units.filter(|(leg, (charged, actual))| charged != actual && !legs.is_permits(*leg));
        if changed.next().is_none() {
            return;
        }
        self.send(key, Item::Correct(Arc::clone(legs), correction));
        let mut units = correction.charged.iter().zip(&correction.actual);
        if units.any(|(charged, actual)| actual < charged) {
            self.on_returns(key);
        }
    }

    /// Units go back: a refusal from before does not hold.
    fn on_returns(&mut self, key: &Key) {
        if let Some(state) = self.keys.get_mut(key) {
            state.returns += 1;
            state.told = None;
            let heads = state.refused.take().map(|refused| refused.heads);
            self.wakers.extend(heads.into_iter().flat_map(BTreeMap::into_values));
        }
    }

    /// Begins a wait for the usage of `key`, once these units of it have been granted. It may have ended already.
    pub(super) fn grant(
        &mut self,
        number: u64,
        key: &Key,
        legs: &Arc<Legs>,
        units: LegUnits,
        waker: Waker,
        now: Instant,
    ) {
        self.enter(number, key, legs, (units, true), None, waker, now);
        if self.is_waiting(number) {
            self.make_room(key);
            self.send(key, Item::Grant(number));
        }
        if units.iter().any(|&n| n > 0) {
            self.on_returns(key);
        }
    }

    /// The key that has waited longest for a step.
    pub(super) fn next_key(&mut self) -> Option<Key> {
        self.ready.pop_front()
    }

    /// Wakes `waker` when there is a next key, or the limiter is closed. Returns the waker before.
    pub(super) fn listen(&mut self, waker: Waker) -> Option<Waker> {
        self.driver.replace(waker)
    }

    /// The next step at `key`; nothing when there is none, and then it is not under way any more.
    pub(super) fn begin(&mut self, key: &Key, now: Instant) -> Option<Flight> {
        if std::process::id() != self.process {
            // The parent sends its steps, and what it was granted is its own.
            return None;
        }
        let state = self.keys.get_mut(key)?;
        state.is_ready = false;
        let ended = state.under_way.take();
        self.flights -= usize::from(ended.is_some());
        self.failing -= usize::from(ended.is_some_and(|(_, fared)| fared != Fared::Unanswered));
        self.last_seq += 1;
        let step = Step::new(self.config.client, self.last_seq, self.config.remember());
        let returns = state.returns;
        let new = |legs: &Arc<Legs>| Flight {
            legs: Arc::clone(legs),
            counted: Arc::clone(&legs.counted),
            step: step.clone(),
            waits: Vec::new(),
            grants: Vec::new(),
            since: now,
            returns,
            is_whole: true,
        };
        let mut flight: Option<Flight> = None;
        // A renewal, or a waiter, takes its turn beside other legs.
        let is_due = state.held.as_ref().is_some_and(|held| held.is_due);
        let first = state.outbox.iter().find_map(|item| item.legs(&self.waits));
        let waiter = state.held.as_ref().and_then(|held| held.queue.front());
        let waiter = waiter.and_then(|number| self.waits.get(number));
        let is_other = |legs: &Arc<Legs>| waiter.is_some_and(|wait| !wait.legs.is(legs));
        let waits_for_renewal = is_due && first.is_some_and(|legs| !legs.has_permits() || is_other(legs));
        let has_waiters = waiter.is_some();
        // So do reservations, with those of a lease in turn.
        let due = state.reserved.due(now).cloned();
        let is_crowded = due
            .as_ref()
            .is_some_and(|due| first.is_some_and(|legs| !legs.is(due)) || (is_due && !due.has_permits()));
        if let Some(due) = &due {
            if !(is_crowded && state.reserved_went_first) {
                flight = Some(new(due));
            }
        }
        state.reserved_went_first = is_crowded && flight.is_some();
        while let Some(item) = state.outbox.front().filter(|_| !waits_for_renewal) {
            if let Some(legs) = item.legs(&self.waits) {
                let flight = flight.get_or_insert_with(|| new(legs));
                if flight.is_full(has_waiters) || !flight.legs.is(legs) {
                    break;
                }
                match item {
                    Item::Take(number) => {
                        flight.step.takes.extend(self.waits.get(number).map(|wait| wait.units));
                        flight.waits.push(*number);
                    }
                    Item::Grant(number) => {
                        let grant = flight.step.grant.get_or_insert_default();
                        let units = self.waits.get(number).map(|wait| wait.units).unwrap_or_default();
                        grant
                            .iter_mut()
                            .zip(units)
                            .for_each(|(all, n)| *all = all.saturating_add(n));
                        flight.grants.push(*number);
                    }
                    Item::Correct(_, correction) => flight.step.corrections.push(*correction),
                }
            }
            state.outbox.pop_front();
        }
        if flight.as_ref().is_some_and(|flight| flight.legs.has_permits()) && state.held.is_none() {
            self.last_lease += 1;
            let legs = flight.as_ref().map(|flight| &flight.legs);
            state.held = legs.map(|legs| Box::new(Held::new(legs, self.last_lease)));
        }
        if let Some(held) = &mut state.held {
            if held.has_ended(now) {
                self.last_lease += 1;
                self.counters.losses += u64::from(held.permits() > 0);
                self.wakers.extend(held.lose(self.last_lease));
            }
            if held.is_due && flight.is_none() {
                flight = Some(new(waiter.map_or(&held.legs, |wait| &wait.legs)));
            }
            // Without a lease it leaves the place of a waiter by other legs as it is.
            let leaves_place = |flight: &Flight| {
                let mut takes = flight.step.takes.iter();
                is_other(&flight.legs) && !takes.any(|units| flight.legs.permits(units).next().is_some())
            };
            if let Some(flight) = flight
                .as_mut()
                .filter(|flight| flight.legs.has_permits() && !leaves_place(flight))
            {
                let waiting = flight.step.takes.len();
                for number in &held.queue {
                    let Some(wait) = self.waits.get(number) else { continue };
                    if flight.is_full(false) || !wait.legs.is(&flight.legs) {
                        break;
                    }
                    flight.step.takes.push(wait.units);
                    flight.waits.push(*number);
                }
                if let Some(counted) = held.counted(&flight.legs.counted) {
                    flight.counted = counted;
                } else {
                    self.last_lease += 1;
                    self.counters.losses += u64::from(held.permits() > 0);
                    self.wakers.extend(held.lose(self.last_lease));
                }
                flight.step.lease = Some(held.report(&flight.counted, self.config.ttl, waiting));
                held.is_subscribed |= flight.step.takes.len() > waiting;
                held.legs = Arc::clone(&flight.legs);
                held.is_due = false;
            }
        }
        if let Some(flight) = &mut flight {
            if self.config.reserves {
                flight.step.reserve_for = Some(self.config.ttl);
                flight.step.reserved = state.reserved.report(&flight.legs, now, BATCH);
                flight.is_whole = !state.reserved.has_unreported();
            }
            state.under_way = Some((now, Fared::Unanswered));
            self.flights += 1;
        }
        self.settle(key, now);
        flight
    }

    /// Forgets `key` when there is nothing left to be known of it, and otherwise sees to its timer and its notifications.
    fn settle(&mut self, key: &Key, now: Instant) {
        let Some(state) = self.keys.get_mut(key) else { return };
        if let Some(held) = &mut state.held {
            let listens = held.has_place && !self.is_closed;
            if listens && held.listening.is_none() {
                self.listens.push(key.clone());
            } else if !listens {
                self.aborts.extend(held.listening.take());
            }
            if held.is_idle() && state.under_way.is_none() {
                self.leaves.extend(held.is_subscribed.then(|| key.clone()));
                state.held = None;
            }
        }
        // What comes up during a step is seen to after it.
        let held = state.held.as_ref().and_then(|held| held.due_at());
        let timer = held.into_iter().chain(state.reserved.due_at()).min();
        let timer = timer.filter(|_| !self.is_closed && state.under_way.is_none());
        if timer != state.timer {
            if let Some(before) = std::mem::replace(&mut state.timer, timer) {
                self.timers.remove(&(before, key.clone()));
            }
            if let Some(timer) = timer {
                self.timers.insert((timer, key.clone()));
                self.wakers.extend(self.driver.take());
            }
        }
        if !state.is_busy() && !state.holds(now) {
            self.keys.remove(key);
        }
        if self.flights == 0 {
            self.silent_since = None;
        }
    }

    /// A key with a place whose notifications are to be awaited: `handle` ends that.
    pub(super) fn next_listen(&mut self, handle: impl FnOnce() -> AbortHandle) -> Option<Key> {
        loop {
            let key = self.listens.pop()?;
            let held = self.keys.get_mut(&key).and_then(|state| state.held.as_mut());
            if let Some(held) = held.filter(|held| held.has_place && held.listening.is_none()) {
                held.listening = Some(handle());
                return Some(key);
            }
        }
    }

    /// A key at which there are no more notifications for a place.
    pub(super) fn next_leave(&mut self) -> Option<Key> {
        self.leaves.pop()
    }

    /// All keys with notifications for a place.
    pub(super) fn subscribed(&self) -> Vec<Key> {
        let is_subscribed = |state: &KeyState| state.held.as_ref().is_some_and(|held| held.is_subscribed);
        let held = self.keys.iter().filter(|(_, state)| is_subscribed(state));
        held.map(|(key, _)| key.clone()).collect()
    }

    /// True when nothing is left to be sent after the limiter was closed.
    pub(super) fn is_done(&self) -> bool {
        self.is_closed && self.ready.is_empty()
    }

    /// The driver ends, or is dropped: nothing is sent any more. Permits stay valid until their lease ends.
    pub(super) fn stop(&mut self) {
        (self.is_closed, self.is_stopped) = (true, true);
        self.end_all();
        self.wakers.append(&mut self.closers);
    }

    /// True when the driver has ended. Otherwise `waker` is woken when it does. Returns the waker if it is not kept.
    pub(super) fn poll_stopped(&mut self, waker: Waker) -> (bool, Option<Waker>) {
        if self.is_stopped || self.closers.iter().any(|closer| closer.will_wake(&waker)) {
            return (self.is_stopped, Some(waker));
        }
        self.closers.push(waker);
        (false, None)
    }

    /// The permits for which a place was kept may be there.
    pub(super) fn on_notified(&mut self, key: &Key) {
        if let Some(held) = self.keys.get_mut(key).and_then(|state| state.held.as_mut()) {
            held.is_due = true;
            self.ready(key);
        }
    }

    /// Lets the driver look at the keys whose timers have run out. Returns when the next one does.
    pub(super) fn on_timers(&mut self, now: Instant) -> Option<Instant> {
        while let Some((at, key)) = self.timers.first().cloned() {
            if at > now {
                return Some(at);
            }
            self.timers.pop_first();
            if let Some(state) = self.keys.get_mut(&key) {
                state.timer = None;
            }
            self.on_notified(&key);
            self.ready(&key);
        }
        None
    }

    /// A step was given up: what it has done is unknown. The next report of what is held sets it right, and without one the lease ends.
    pub(super) fn on_given_up(&mut self, key: &Key, flight: &Flight) {
        let waiting = flight.step.lease.map_or(usize::MAX, |lease| lease.waiting);
        let asked = flight.waits.iter().take(waiting).chain(&flight.grants);
        for number in asked {
            if self.is_waiting(*number) {
                self.end(*number, self.unavailable());
            }
        }
        let Some(state) = self.keys.get_mut(key) else { return };
        if let Some(held) = &mut state.held {
            held.has_place &= !held.queue.is_empty();
            held.is_due = !self.is_closed && held.has_something();
        }
        state.reserved.on_given_up(&flight.legs, &flight.step.reserved);
        if self.is_closed {
            // They end at the store by themselves.
            state.reserved = Reservations::default();
        }
    }

    /// The store has carried out `flight`.
    pub(super) fn on_reply(&mut self, key: &Key, flight: &Flight, reply: &StepReply, now: Instant) {
        self.note_answer();
        self.last_error = None;
        self.counters.steps += 1;
        let lease = flight.step.lease;
        let is_late = lease.is_some() && self.on_lease(key, flight, reply, now);
        let waiting = lease.map_or(usize::MAX, |lease| lease.waiting);
        let until = Reserved::until(reply.at, self.config.ttl);
        let renew_at = self.clock.after(flight.since, self.config.ttl / 3);
        if let Some(state) = self.keys.get_mut(key) {
            state
                .reserved
                .on_reply(&flight.legs, &flight.step.reserved, until, renew_at);
            for (units, _) in flight
                .step
                .takes
                .iter()
                .zip(&reply.takes)
                .filter(|(_, taken)| taken.is_ok())
            {
                if self.config.reserves {
                    state.reserved.add(reply.at, &flight.legs, units, until, renew_at);
                }
            }
        }
        let mut first_refused: Option<(usize, Instant)> = None;
        let takes = flight.waits.iter().zip(&flight.step.takes).zip(&reply.takes);
        for (n, ((number, units), taken)) in takes.enumerate() {
            let end = match taken {
                Ok(()) if is_late && flight.legs.permits(units).next().is_some() => {
                    // The lease is over. The next report gives the permits back.
                    let charge = Charge::new(&flight.legs, units);
                    self.recharge(key, &flight.legs, reply.at, &charge, &Charge::default(), true);
                    // The process was suspended: its waiters ask again.
                    if n >= waiting {
                        continue;
                    }
                    End::Failed(Reason::Unavailable)
                }
                Ok(()) => {
                    let held = self.keys.get_mut(key).and_then(|state| state.held.as_mut());
                    let mut lease = 0;
                    if let Some(held) = held.filter(|_| flight.legs.permits(units).next().is_some()) {
                        held.add(&flight.legs, units);
                        lease = held.lease;
                    }
                    End::Granted { at: reply.at, lease }
                }
                Err(refusal) => {
                    let until = refusal.after.map(|after| self.clock.after(now, after));
                    let leg = refusal.leg;
                    if let Some(until) = until.filter(|_| n >= waiting) {
                        first_refused.get_or_insert((leg, until));
                        continue;
                    }
                    // Others give back at a shared leg, which is not told here.
                    let is_own = flight.is_whole && !flight.legs.is_permits(leg) && !flight.legs.is_shared(leg);
                    let state = self.keys.get_mut(key);
                    let state = state.filter(|state| is_own && state.returns == flight.returns);
                    if let (Some(until), Some(state)) = (until, state) {
                        let heads = state.refused.take().map(|before| before.heads).unwrap_or_default();
                        state.refused = Some(RefusedUntil {
                            legs: Arc::clone(&flight.legs),
                            leg,
                            units: units[leg],
                            until,
                            doubted_at: until.min(self.clock.after(now, self.config.ttl)),
                            heads,
                        });
                    }
                    if until.is_some() && flight.legs.is_permits(leg) {
                        End::Saturated(leg)
                    } else {
                        End::Refused(leg, until)
                    }
                }
            };
            let waits = self.waits.get(number).is_some_and(|wait| wait.end.is_none());
            let granted = matches!(end, End::Granted { .. });
            if let Some(state) = self.keys.get_mut(key).filter(|_| granted) {
                state.told = None;
            }
            if waits {
                self.end(*number, end);
            } else if let End::Granted { at, lease } = end {
                // It was given up, or admitted without the store.
                self.give_back(key, &flight.legs, at, lease, units);
            }
        }
        for number in &flight.grants {
            self.end(*number, End::Usage(reply.usage.clone().into()));
        }
        let held = self.keys.get_mut(key).and_then(|state| state.held.as_mut());
        if let Some(held) = held.filter(|_| lease.is_some()) {
            held.retry_at = first_refused.map(|(_, until)| until);
            held.has_place = first_refused.is_some();
            held.is_refused = first_refused.is_some() && !held.queue.is_empty();
            held.is_due |= held.has_place && held.queue.is_empty();
            held.is_due |= !held.queue.is_empty() && !held.is_refused;
        }
        if let Some((leg, until)) = first_refused {
            self.tell(key, &flight.legs, leg, until, now);
        }
    }

    /// Notes why the store keeps the first waiter of `key` waiting. A policy looks again: the instant may be too late for its waiter.
    fn tell(&mut self, key: &Key, legs: &Arc<Legs>, leg: usize, until: Instant, now: Instant) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let doubted_at = self.clock.after(now, self.config.ttl);
        let (legs, is_until) = (Arc::clone(legs), !legs.is_permits(leg));
        state.told = Some(Told {
            legs,
            leg,
            until,
            doubted_at,
        });
        let first = state.held.as_ref().and_then(|held| held.queue.front());
        if let Some(wait) = first.filter(|_| is_until).and_then(|first| self.waits.get_mut(first)) {
            self.wakers.extend(wait.news.take());
        }
    }

    /// The lease of `key` was renewed, or lost. True when it is over already.
    fn on_lease(&mut self, key: &Key, flight: &Flight, reply: &StepReply, now: Instant) -> bool {
        let Some(held) = self.keys.get_mut(key).and_then(|state| state.held.as_mut()) else {
            return true;
        };
        if let Some(report) = &flight.step.lease {
            held.reported(&flight.counted, report);
        }
        // What was lost stays lost, though the store knows of it.
        let was_over = held.has_ended(now);
        held.renew(flight.since, self.config.ttl, &self.clock);
        let is_late = held.is_over(now);
        held.is_due |= was_over;
        if reply.lost || is_late || was_over {
            self.last_lease += 1;
            self.counters.losses += u64::from(held.permits() > 0);
            self.wakers.extend(held.lose(self.last_lease));
            held.is_due |= is_late;
        }
        is_late
    }

    /// The store has answered: it is not away.
    fn note_answer(&mut self) {
        (self.silent_since, self.probe) = (None, None);
    }

    /// The step at `key` has failed. Waits end once that has lasted for long, and at once where the store refuses for good.
    pub(super) fn on_failure(&mut self, key: &Key, now: Instant, error: StoreError) {
        self.counters.failures += 1;
        let fared = match error {
            StoreError::Refused { .. } => Fared::Refused,
            _ => Fared::Failed,
        };
        match error {
            StoreError::Unreachable { .. } | StoreError::TimedOut { .. } => _ = self.silent_since.get_or_insert(now),
            _ => self.note_answer(),
        }
        self.last_error = Some(error);
        if let Some((_, before)) = self.keys.get_mut(key).and_then(|state| state.under_way.as_mut()) {
            self.failing += usize::from(*before == Fared::Unanswered);
            *before = fared;
        }
        if let Some((_, until)) = self.probe.as_mut().filter(|(probe, _)| probe == key) {
            *until = self.clock.after(now, self.config.retry);
        }
        if fared == Fared::Refused {
            return self.end_where(&End::Failed(Reason::Misconfigured), |_, wait| wait.key == *key);
        }
        if self.is_unavailable(key, now) {
            self.end_where(&self.unavailable(), |client, wait| client.ends_waits(&wait.key, now));
        }
    }

    /// Ends the open waits for which `ends` is true.
    fn end_where(&mut self, end: &End, ends: impl Fn(&Self, &Wait) -> bool) {
        let open = self.waits.iter().filter(|(_, wait)| wait.end.is_none());
        let ended: Vec<u64> = open
            .filter(|(_, wait)| ends(self, wait))
            .map(|(&number, _)| number)
            .collect();
        ended.into_iter().for_each(|number| self.end(number, end.clone()));
    }

    /// True when a step is not repeated any more: the store may have forgotten that it carried it out. A refused step of asks alone is not
    /// repeated at all: their waits have ended, and the next ask finds out whether the store still refuses.
    pub(super) fn gives_up(&self, key: &Key, flight: &Flight, now: Instant) -> bool {
        if flight.is_of_waits() && self.is_refused(key) {
            return true;
        }
        let patience = match self.is_closed {
            true => self.config.unavailable_after.min(self.config.patience()),
            false => self.config.patience(),
        };
        flight.since < now && self.clock.after(flight.since, patience) <= now
    }

    fn end(&mut self, number: u64, end: End) {
        if matches!(end, End::Granted { .. }) {
            self.hand_to_oldest(number);
        }
        let Some(wait) = self.waits.get_mut(&number) else {
            return;
        };
        let end = match end {
            End::Uncounted if wait.looks => End::Failed(Reason::Unavailable),
            end => end,
        };
        match end {
            End::Granted { .. } => self.counters.admitted += 1,
            End::Uncounted => self.counters.admitted_unavailable += 1,
            End::Refused(..) | End::Saturated(_) => self.counters.refused += 1,
            End::Failed(_) | End::Usage(_) => {}
        }
        wait.end = Some(end);
        self.wakers.extend(wait.waker.take());
        self.stale.extend(wait.news.take());
        let Some(state) = self.keys.get_mut(&wait.key) else {
            return;
        };
        let Some(held) = state.held.as_mut() else { return };
        if held.leave(number) && state.under_way.is_none() {
            // The place goes, or to the next one.
            held.is_due = true;
            let key = wait.key.clone();
            self.ready(&key);
        }
    }

    /// Ends all waits, and those for the end of a refusal.
    fn end_all(&mut self) {
        self.end_where(&End::Failed(Reason::Closed), |_, _| true);
        for state in self.keys.values_mut() {
            let heads = state.refused.take().map(|refused| refused.heads);
            self.wakers.extend(heads.into_iter().flat_map(BTreeMap::into_values));
        }
    }

    /// Refuses everything from now on. Corrections that are to be sent still are.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.end_all();
        let keys: Vec<Key> = self.keys.keys().cloned().collect();
        for key in keys {
            if let Some(held) = self.keys.get_mut(&key).and_then(|state| state.held.as_mut()) {
                self.last_lease += 1;
                held.is_due |= !held.is_idle();
                self.wakers.extend(held.lose(self.last_lease));
                held.queue.clear();
                self.ready(&key);
            }
            let state = self.keys.get_mut(&key);
            if let Some(state) = state.filter(|state| !state.reserved.is_empty()) {
                state.reserved.use_all();
                state.reserved.hurry();
                self.ready(&key);
            }
        }
        self.wakers.extend(self.driver.take());
    }
}

impl Flight {
    /// True when it carries nothing but asks, whose waits have ended where it was refused.
    fn is_of_waits(&self) -> bool {
        let holds = |lease: &KeyLease| lease.held.iter().any(|&units| units > 0);
        self.step.corrections.is_empty()
            && self.step.reserved.is_empty()
            && !self.step.lease.as_ref().is_some_and(holds)
    }

    /// With `has_waiters` there has to be room for one more.
    fn is_full(&self, has_waiters: bool) -> bool {
        self.step.takes.len() + self.step.corrections.len() + usize::from(has_waiters) >= BATCH
    }
}

impl KeyState {
    /// True when something is to be sent, is under way, or is held.
    fn is_busy(&self) -> bool {
        let holds = self.held.as_ref().is_some_and(|held| !held.is_idle());
        self.under_way.is_some() || self.is_ready || !self.outbox.is_empty() || holds || !self.reserved.is_empty()
    }

    /// True when a refusal is to be remembered.
    fn holds(&self, now: Instant) -> bool {
        let is_told = self.told.as_ref().is_some_and(|told| now < told.doubted_at);
        is_told || self.refused.as_ref().is_some_and(|refused| now < refused.doubted_at)
    }
}
