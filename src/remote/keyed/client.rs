//! The state of a limiter of many keys in this process, as a pure state machine: what is to be asked at each key, what is under
//! way, and what the store has refused until when.
//!
//! A key is listed while something is to be sent, is under way, or is refused for some time. At most one step of a key is under
//! way, and everything that comes up meanwhile goes into the next one.
//!
//! Invariant: a key with something to send has a step under way, or stands in `ready` once. A wait that was given up is in no
//! table, and what it is granted later goes back.

use super::legs::Legs;
use crate::core::refusal::Reason;
use crate::remote::config::OnUnavailable;
use crate::remote::key::Key;
use crate::remote::step::{Correction, LegUnits, Step, StepReply};
use crate::time::{Clock, Instant};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// The most admissions and corrections in one step.
const BATCH: usize = 64;

/// The settings, fixed while it runs.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) client: u64,
    pub(super) max_keys: usize,
    pub(super) timeout: Duration,
    pub(super) retry: Duration,
    pub(super) on_unavailable: OnUnavailable,
    pub(super) unavailable_after: Duration,
}

impl Config {
    /// How long a store remembers the reply to a step.
    pub(super) fn remember(&self) -> Duration {
        (self.timeout + self.retry) * 20
    }

    /// How long a step is repeated: no longer than any store is sure to remember it.
    fn patience(&self) -> Duration {
        self.remember() / 2
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The store has taken the units at this instant of its clock.
    Granted(u64),
    /// It has not: the leg admits then, or never.
    Refused(usize, Option<Instant>),
    /// The store was not asked: it cannot be reached, or the limiter is closed or has no room for the key.
    Failed(Reason),
    /// The store cannot be reached, and the admission is not counted.
    Uncounted,
}

#[derive(Debug)]
struct Wait {
    key: Key,
    legs: Arc<Legs>,
    units: LegUnits,
    end: Option<End>,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum Item {
    Take(u64),
    Correct(Arc<Legs>, Correction),
}

/// A step that is under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) legs: Arc<Legs>,
    pub(super) step: Step,
    /// The waits of its admissions.
    waits: Vec<u64>,
    since: Instant,
}

#[derive(Debug, Default)]
struct KeyState {
    outbox: VecDeque<Item>,
    is_under_way: bool,
    is_ready: bool,
    refused: Option<RefusedUntil>,
}

/// A refusal that holds for some time: so much of that leg is not there before.
#[derive(Debug)]
struct RefusedUntil {
    legs: Arc<Legs>,
    leg: usize,
    units: u64,
    until: Instant,
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
    failing_since: Option<Instant>,
    is_closed: bool,
    driver: Option<Waker>,
    /// To be woken once the client is unlocked.
    wakers: Vec<Waker>,
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
            failing_since: None,
            is_closed: false,
            driver: None,
            wakers: Vec::new(),
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// The keys that are listed.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) fn is_unavailable(&self, now: Instant) -> bool {
        let patience = self.config.unavailable_after;
        self.failing_since
            .is_some_and(|since| self.clock.after(since, patience) <= now)
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
        let holds = Arc::ptr_eq(&refused.legs, legs) && units[refused.leg] >= refused.units && now < refused.until;
        holds.then_some((refused.leg, refused.until))
    }

    /// Begins a wait for the store's answer. It may have ended already.
    pub(super) fn join(&mut self, key: &Key, legs: &Arc<Legs>, units: LegUnits, waker: Waker, now: Instant) -> u64 {
        self.last_wait += 1;
        let number = self.last_wait;
        let end = if self.is_closed {
            Some(End::Failed(Reason::Closed))
        } else if self.is_unavailable(now) {
            Some(self.unavailable())
        } else if !self.has_room(key, now) {
            Some(End::Failed(Reason::QueueFull))
        } else {
            None
        };
        let is_sent = end.is_none();
        if !is_sent {
            self.wakers.push(waker.clone());
        }
        let wait = Wait {
            key: key.clone(),
            legs: Arc::clone(legs),
            units,
            end,
            waker: Some(waker),
        };
        self.waits.insert(number, wait);
        if is_sent {
            self.send(key, Item::Take(number));
        }
        number
    }

    /// Why everything is refused at once, if it is.
    pub(super) fn refuses(&self, now: Instant) -> Option<Reason> {
        match self.unavailable() {
            End::Failed(reason) if self.is_unavailable(now) => Some(reason),
            _ => None,
        }
    }

    fn unavailable(&self) -> End {
        match self.config.on_unavailable {
            OnUnavailable::Admit => End::Uncounted,
            _ => End::Failed(Reason::Unavailable),
        }
    }

    /// True when `key` is listed or can be. Refusals that hold no more make room for it.
    fn has_room(&mut self, key: &Key, now: Instant) -> bool {
        if self.keys.len() < self.config.max_keys || self.keys.contains_key(key) {
            return true;
        }
        self.keys.retain(|_, state| !state.is_idle(now));
        self.keys.len() < self.config.max_keys
    }

    fn send(&mut self, key: &Key, item: Item) {
        let state = self.keys.entry(key.clone()).or_default();
        state.outbox.push_back(item);
        if !state.is_under_way && !state.is_ready {
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
        match wait.end {
            Some(end) => {
                self.waits.remove(&number);
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

    /// Gives a wait up. What it was granted goes back.
    pub(super) fn leave(&mut self, number: u64) -> Option<Waker> {
        let wait = self.waits.remove(&number)?;
        if let Some(End::Granted(at)) = wait.end {
            self.give_back(&wait.key, &wait.legs, at, &wait.units);
        }
        wait.waker
    }

    /// Gives back all that was taken at `at`.
    pub(super) fn give_back(&mut self, key: &Key, legs: &Arc<Legs>, at: u64, units: &LegUnits) {
        let (charged, actual) = (*units, LegUnits::default());
        self.correct(key, legs, Correction { at, charged, actual });
    }

    /// Hands a correction to the store.
    pub(super) fn correct(&mut self, key: &Key, legs: &Arc<Legs>, correction: Correction) {
        if correction.charged != correction.actual {
            self.send(key, Item::Correct(Arc::clone(legs), correction));
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
        let state = self.keys.get_mut(key)?;
        state.is_ready = false;
        self.last_seq += 1;
        let step = Step::new(self.config.client, self.last_seq, self.config.remember());
        let mut flight: Option<Flight> = None;
        while let Some(item) = state.outbox.front() {
            let legs = match item {
                Item::Take(number) => self.waits.get(number).map(|wait| (&wait.legs, Some(wait.units))),
                Item::Correct(legs, _) => Some((legs, None)),
            };
            if let Some((legs, units)) = legs {
                let flight = flight.get_or_insert_with(|| Flight {
                    legs: Arc::clone(legs),
                    step: step.clone(),
                    waits: Vec::new(),
                    since: now,
                });
                let full = flight.step.takes.len() + flight.step.corrections.len() == BATCH;
                if full || !Arc::ptr_eq(&flight.legs, legs) {
                    break;
                }
                flight.step.takes.extend(units);
                match item {
                    Item::Take(number) => flight.waits.push(*number),
                    Item::Correct(_, correction) => flight.step.corrections.push(*correction),
                }
            }
            state.outbox.pop_front();
        }
        state.is_under_way = flight.is_some();
        if flight.is_none() && state.is_idle(now) {
            self.keys.remove(key);
        }
        flight
    }

    /// The store has carried out `flight`.
    pub(super) fn on_reply(&mut self, key: &Key, flight: &Flight, reply: &StepReply, now: Instant) {
        self.failing_since = None;
        let takes = flight.waits.iter().zip(&flight.step.takes).zip(&reply.takes);
        for ((number, units), taken) in takes {
            let end = match taken {
                Ok(()) => End::Granted(reply.at),
                Err(refusal) => {
                    let until = refusal.after.map(|after| self.clock.after(now, after));
                    let leg = refusal.leg.min(flight.legs.counted.len() - 1);
                    if let (Some(until), Some(state)) = (until, self.keys.get_mut(key)) {
                        state.refused = Some(RefusedUntil {
                            legs: Arc::clone(&flight.legs),
                            leg,
                            units: units[leg],
                            until,
                        });
                    }
                    End::Refused(leg, until)
                }
            };
            let waits = self.waits.get(number).is_some_and(|wait| wait.end.is_none());
            if waits {
                self.end(*number, end);
            } else if let End::Granted(at) = end {
                // It was given up, or admitted without the store.
                self.give_back(key, &flight.legs, at, units);
            }
        }
    }

    /// A step has failed. True when it is to be repeated.
    pub(super) fn on_failure(&mut self, flight: &Flight, now: Instant) -> bool {
        let since = *self.failing_since.get_or_insert(now);
        let (unavailable, patience) = (self.is_unavailable(now), self.config.patience());
        let given_up = self.is_closed || self.clock.after(flight.since.max(since), patience) <= now;
        if unavailable || given_up {
            let end = self.unavailable();
            let open: Vec<u64> = match unavailable {
                true => self.waits.keys().copied().collect(),
                false => flight.waits.clone(),
            };
            for number in open {
                if self.is_waiting(number) {
                    self.end(number, end);
                }
            }
        }
        !given_up
    }

    fn end(&mut self, number: u64, end: End) {
        if let Some(wait) = self.waits.get_mut(&number) {
            wait.end = Some(end);
            self.wakers.extend(wait.waker.take());
        }
    }

    /// Refuses everything from now on. Corrections that are to be sent still are.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        let open: Vec<u64> = self.waits.keys().copied().collect();
        for number in open {
            if self.is_waiting(number) {
                self.end(number, End::Failed(Reason::Closed));
            }
        }
        self.wakers.extend(self.driver.take());
    }
}

impl KeyState {
    /// True when it may be forgotten.
    fn is_idle(&self, now: Instant) -> bool {
        let holds = self.refused.as_ref().is_some_and(|refused| now < refused.until);
        !self.is_under_way && !self.is_ready && self.outbox.is_empty() && !holds
    }
}
